// Which pieces of a matrix a view needs, and how finely: a matrix of any size is fetched a screen at a time.

import type { View } from "./heat";

export interface Chunk { row: number; column: number; rows: number; columns: number } // cells of the whole matrix

const SEEN = 1 << 19; // cells of one level that a view shows at most
const CELLS = 1 << 18; // of a chunk: what a browser takes apart between two frames
const ROWS = 512;
const COLUMNS = 4096;

// The least level at which the cells in view are few enough; each level halves both axes.
export function fineness(view: View): number {
  let k = 0;
  while ((view.rows / 2 ** k) * (view.columns / 2 ** k) > SEEN) k++;
  return k;
}

export function chunks(rows: number, columns: number, view: View, level: number): Chunk[] {
  const scale = 2 ** level, power = (n: number): number => 2 ** Math.ceil(Math.log2(Math.max(1, n)));
  const high = Math.min(ROWS, power(Math.ceil(rows / scale))), wide = Math.min(COLUMNS, Math.max(ROWS, CELLS / high));
  const down = high * scale, along = wide * scale, pieces: Chunk[] = [];
  for (let r = Math.floor(Math.max(0, view.row) / down) * down; r < Math.min(rows, view.row + view.rows); r += down)
    for (let c = Math.floor(Math.max(0, view.column) / along) * along; c < Math.min(columns, view.column + view.columns); c += along)
      pieces.push({ row: r, column: c, rows: Math.min(down, rows - r), columns: Math.min(along, columns - c) });
  return pieces;
}

// The view after zooming by a factor around a point, kept within the matrix.
export function zoomed(view: View, rows: number, columns: number, factor: number, x: number, y: number): View {
  const wide = Math.min(columns, Math.max(Math.min(4, columns), view.columns / factor)), high = Math.min(rows, Math.max(Math.min(2, rows), view.rows / factor));
  return clamped({ row: y - ((y - view.row) * high) / view.rows, column: x - ((x - view.column) * wide) / view.columns, rows: high, columns: wide }, rows, columns);
}

export function clamped(view: View, rows: number, columns: number): View {
  const keep = (at: number, size: number, all: number): number => Math.min(Math.max(0, at), Math.max(0, all - size));
  return { ...view, row: keep(view.row, view.rows, rows), column: keep(view.column, view.columns, columns) };
}
