// Grids of numbers as pictures, several on one canvas: by the shared WebGL2 canvas, or pixel by pixel where there is none.

import type { Grid } from "../tensor/grid";
import { colour, type Scheme } from "./colour";
import { Gl } from "./gl";

export interface View { row: number; column: number; rows: number; columns: number }
export interface Placed { grid: Grid; view: View; limit: number; scheme: Scheme; root: boolean; x: number; y: number; width: number; height: number }

const SMALL = 60_000; // pixels and cells: fewer are painted sooner than a GPU's picture is read back
let shared: Gl | undefined;

// Sizes and places are in device pixels; what lies between pictures stays clear.
export function heat(canvas: HTMLCanvasElement, width: number, height: number, pictures: readonly Placed[]): void {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  if (!context) return;
  const drawn = pictures.filter((p) => p.width > 0 && p.height > 0 && p.grid.rows > 0 && p.grid.columns > 0);
  shared ??= new Gl();
  const work = drawn.reduce((n, p) => n + p.width * p.height + Math.round(p.view.rows * p.view.columns), 0);
  if (work > SMALL && shared.draw(width, height, drawn))
    for (const { x, y, width: w, height: h } of drawn) context.drawImage(shared.canvas, x, y, w, h, x, y, w, h);
  else for (const p of drawn) context.putImageData(new ImageData(pixels(p), p.width, p.height), p.x, p.y);
}

// The same cells and colours as the shader's, in RGBA.
export function pixels({ grid, view, limit, scheme, root, width, height }: Placed): Uint8ClampedArray<ArrayBuffer> {
  const out = new Uint8ClampedArray(4 * width * height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const [r0, r1] = covered(view.row, view.rows / height, y, grid.rows), [c0, c1] = covered(view.column, view.columns / width, x, grid.columns);
      const [r, g, b] = colour(largest(grid, r0, r1, c0, c1), limit, scheme, root), at = 4 * (y * width + x);
      out[at] = r;
      out[at + 1] = g;
      out[at + 2] = b;
      out[at + 3] = 255;
    }
  return out;
}

// The first and last cell that a pixel covers; one, where cells are larger than pixels.
function covered(start: number, step: number, pixel: number, count: number): [number, number] {
  const low = start + pixel * step, many = step > 1;
  const first = Math.floor(many ? low : low + step / 2), last = Math.max(first, many ? Math.floor(low + step) - 1 : 0);
  return [Math.min(count - 1, Math.max(0, first)), Math.min(count - 1, Math.max(0, last))];
}

function largest({ values, columns }: Grid, r0: number, r1: number, c0: number, c1: number): number {
  let best = values[r0 * columns + c0] ?? NaN;
  for (let r = r0; r <= r1; r++)
    for (let c = c0; c <= c1; c++) {
      const x = values[r * columns + c] ?? NaN;
      if (Number.isNaN(x)) return x;
      if (Math.abs(x) > Math.abs(best)) best = x;
    }
  return best;
}

// How many pictures go side by side so that they are largest: n of them, each rows × columns cells, in a box.
export function multiples(n: number, width: number, height: number, gap: number): { across: number; down: number } {
  let best = { across: n, down: 1 }, room = -1;
  for (let across = 1; across <= n; across++) {
    const down = Math.ceil(n / across), w = (width - gap * (across - 1)) / across, h = (height - gap * (down - 1)) / down;
    const side = Math.min(w, h * 1.6);
    if (side > room) [best, room] = [{ across, down }, side];
  }
  return best;
}
