// One WebGL2 canvas draws for every picture of the page, which copies it: a browser keeps 16 contexts alive at most.

import { INFINITE, NAN, STOPS, type Scheme } from "./colour";
import type { Placed } from "./heat";

const TEXTURES = 96; // kept on the GPU; the longest unused goes first
const PLAYED = /swiftshader|llvmpipe|softpipe|software|basic render/i; // GPUs that the processor plays: it paints faster by itself
const stops = (scheme: Scheme) => `vec3[](${STOPS[scheme].map((s) => `vec3(${s.join(".,")}.)`).join()})`;
const VERTEX = "#version 300 es\nvoid main() { gl_Position = vec4(vec2((gl_VertexID << 1) & 2, gl_VertexID & 2) * 2. - 1., 0., 1.); }";
// A pixel that covers several cells shows the one of largest magnitude.
const FRAGMENT = `#version 300 es
precision highp float; precision highp int; precision highp sampler2D;
uniform sampler2D cells; uniform ivec2 size; uniform vec4 box; uniform vec4 view; uniform float limit; uniform bool share; uniform bool night; uniform bool root; out vec4 shown;
const vec3 SIGNED[${STOPS.signed.length}] = ${stops("signed")};
const vec3 NIGHT[${STOPS.night.length}] = ${stops("night")};
const vec3 SHARE[${STOPS.share.length}] = ${stops("share")};
void main() {
  vec2 at = floor(vec2(gl_FragCoord.x - box.x, box.y + box.w - gl_FragCoord.y)), per = view.zw / box.zw;
  vec2 low = view.xy + at * per, high = low + per, mid = low + per / 2.;
  ivec2 first = ivec2(floor(per.x > 1. ? low.x : mid.x), floor(per.y > 1. ? low.y : mid.y));
  ivec2 last = max(first, ivec2(per.x > 1. ? floor(high.x) - 1. : 0., per.y > 1. ? floor(high.y) - 1. : 0.));
  first = clamp(first, ivec2(0), size - 1); last = clamp(last, ivec2(0), size - 1);
  float x = texelFetch(cells, first, 0).r;
  for (int r = first.y; r <= last.y; r++) for (int c = first.x; c <= last.x; c++) {
    float y = texelFetch(cells, ivec2(c, r), 0).r;
    if (isnan(y)) { x = y; r = last.y; break; }
    if (abs(y) > abs(x)) x = y;
  }
  vec3 rgb;
  if (isnan(x)) rgb = vec3(${NAN.join(".,")}.);
  else if (isinf(x)) rgb = x < 0. ? vec3(${INFINITE[0].join(".,")}.) : vec3(${INFINITE[1].join(".,")}.);
  else {
    float t = limit > 0. ? x / limit : 0.;
    if (share) { float a = clamp(t, 0., 1.) * ${STOPS.share.length - 1}.; int i = min(int(a), ${STOPS.share.length - 2}); rgb = mix(SHARE[i], SHARE[i + 1], a - float(i)); }
    else { if (root) t = sign(t) * sqrt(abs(t)); float a = clamp((t + 1.) / 2., 0., 1.) * ${STOPS.signed.length - 1}.; int i = min(int(a), ${STOPS.signed.length - 2}); rgb = night ? mix(NIGHT[i], NIGHT[i + 1], a - float(i)) : mix(SIGNED[i], SIGNED[i + 1], a - float(i)); }
  }
  shown = vec4(rgb / 255., 1.);
}`;

export class Gl {
  readonly canvas = document.createElement("canvas");
  private gl: WebGL2RenderingContext | null = null;
  private where: Record<string, WebGLUniformLocation | null> = {};
  private textures = new Map<ArrayLike<number>, WebGLTexture>();

  constructor() {
    this.canvas.addEventListener("webglcontextlost", (e) => { e.preventDefault(); this.gl = null; });
    this.canvas.addEventListener("webglcontextrestored", () => this.start());
    this.start();
  }

  private start(): void {
    this.textures.clear();
    const gl = this.canvas.getContext("webgl2", { antialias: false, preserveDrawingBuffer: true });
    if (!gl || PLAYED.test(String(gl.getParameter(gl.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL ?? gl.RENDERER)))) return;
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]] as const) {
      const shader = gl.createShader(kind);
      if (!shader) return;
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return;
    gl.useProgram(program);
    gl.enable(gl.SCISSOR_TEST);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    for (const name of ["size", "box", "view", "limit", "share", "night", "root"]) this.where[name] = gl.getUniformLocation(program, name);
    this.gl = gl;
  }

  // False where it cannot: the caller paints by itself then.
  draw(width: number, height: number, pictures: readonly Placed[]): boolean {
    const gl = this.gl;
    if (!gl || pictures.some(({ grid }) => Math.max(grid.rows, grid.columns) > gl.getParameter(gl.MAX_TEXTURE_SIZE))) return false;
    if (this.canvas.width < width) this.canvas.width = width;
    if (this.canvas.height < height) this.canvas.height = height;
    for (const { grid, view, limit, scheme, root, x, y, width: w, height: h } of pictures) {
      const bottom = this.canvas.height - y - h;
      gl.bindTexture(gl.TEXTURE_2D, this.texture(gl, grid.values, grid.columns, grid.rows));
      gl.viewport(x, bottom, w, h);
      gl.scissor(x, bottom, w, h);
      gl.uniform2i(this.where.size ?? null, grid.columns, grid.rows);
      gl.uniform4f(this.where.box ?? null, x, bottom, w, h);
      gl.uniform4f(this.where.view ?? null, view.column, view.row, view.columns, view.rows);
      gl.uniform1f(this.where.limit ?? null, limit);
      gl.uniform1i(this.where.share ?? null, scheme === "share" ? 1 : 0);
      gl.uniform1i(this.where.night ?? null, scheme === "night" ? 1 : 0);
      gl.uniform1i(this.where.root ?? null, root ? 1 : 0);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    }
    return !gl.isContextLost();
  }

  private texture(gl: WebGL2RenderingContext, values: ArrayLike<number>, columns: number, rows: number): WebGLTexture {
    const known = this.textures.get(values);
    this.textures.delete(values);
    const texture = known ?? gl.createTexture();
    this.textures.set(values, texture);
    if (known) return known;
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R32F, columns, rows, 0, gl.RED, gl.FLOAT, values instanceof Float32Array ? values : Float32Array.from(values));
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    const [oldest] = this.textures;
    if (oldest && this.textures.size > TEXTURES) {
      gl.deleteTexture(oldest[1]);
      this.textures.delete(oldest[0]);
    }
    return texture;
  }
}
