// Grids of numbers as pictures, several on one canvas: by the shared WebGL2 canvas, or pixel by pixel where there is none.

import type { Grid } from "../tensor/grid";
import { paint, type Scheme } from "./colour";
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
  const work = drawn.reduce((n, p) => n + p.width * p.height + Math.round(p.view.rows * p.view.columns), 0);
  if (work > SMALL && (shared ??= new Gl()).draw(width, height, drawn))
    for (const { x, y, width: w, height: h } of drawn) context.drawImage(shared.canvas, x, y, w, h, x, y, w, h);
  else for (const p of drawn) context.putImageData(new ImageData(pixels(p), p.width, p.height), p.x, p.y);
}

// The same cells and colours as the shader's, in RGBA. No pixel makes an object: a picture is painted anew for every step of a hand.
export function pixels({ grid, view, limit, scheme, root, width, height }: Placed): Uint8ClampedArray<ArrayBuffer> {
  const out = new Uint8ClampedArray(4 * width * height), { values, columns } = grid;
  const [left, right] = covered(view.column, view.columns / width, width, grid.columns), [top, bottom] = covered(view.row, view.rows / height, height, grid.rows);
  for (let y = 0, at = 0; y < height; y++)
    for (let x = 0; x < width; x++, at += 4) {
      const c0 = left[x] as number, c1 = right[x] as number, r1 = bottom[y] as number;
      let r = top[y] as number, best = values[r * columns + c0] as number;
      for (; r <= r1; r++)
        for (let i = r * columns + c0, end = r * columns + c1; i <= end; i++) {
          const value = values[i] as number;
          if (value !== value || Math.abs(value) > Math.abs(best)) best = value; // NaN stays: nothing is greater
        }
      paint(out, at, best, limit, scheme, root);
    }
  return out;
}

// Of each pixel the first and last cell that it covers; one, where cells are larger than pixels.
function covered(start: number, step: number, pixels: number, count: number): [Int32Array, Int32Array] {
  const first = new Int32Array(pixels), last = new Int32Array(pixels), many = step > 1, within = (i: number): number => Math.min(count - 1, Math.max(0, i));
  for (let i = 0; i < pixels; i++) {
    const low = start + i * step, from = Math.floor(many ? low : low + step / 2);
    first[i] = within(from);
    last[i] = within(many ? Math.max(from, Math.floor(low + step) - 1) : from);
  }
  return [first, last];
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
