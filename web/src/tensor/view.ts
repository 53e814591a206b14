// A tensor as matrices: its last two axes as rows and columns, a head axis as small multiples, every other axis at its first index.

import type { Grid } from "./grid";

export interface Layout { heads: number; rows: number; columns: number } // numbers of axes; -1: there is none

const HEADS = new Set(["H", "G"]);

export function layout(axes: readonly string[]): Layout {
  const heads = axes.findIndex((a) => HEADS.has(a));
  const rest = axes.map((_, i) => i).filter((i) => i !== heads && axes[i] !== "B");
  if (rest.length === 0) return { heads: -1, rows: heads, columns: -1 };
  if (rest.length === 1) return heads < 0 ? { heads: -1, rows: -1, columns: rest[0] as number } : { heads: -1, rows: heads, columns: rest[0] as number };
  return { heads, rows: rest.at(-2) as number, columns: rest.at(-1) as number };
}

// A matrix of a dense tensor: rows and columns by these axes (-1: one), the others at `at`.
export function matrix(values: ArrayLike<number>, shape: readonly number[], rows: number, columns: number, at: readonly number[]): Grid {
  const strides = shape.map((_, i) => shape.slice(i + 1).reduce((n, size) => n * size, 1));
  const start = strides.reduce((n, s, i) => n + (i === rows || i === columns ? 0 : s * (at[i] ?? 0)), 0);
  const high = rows < 0 ? 1 : (shape[rows] ?? 0), wide = columns < 0 ? 1 : (shape[columns] ?? 0);
  const down = rows < 0 ? 0 : (strides[rows] ?? 0), along = columns < 0 ? 0 : (strides[columns] ?? 0);
  if (values instanceof Float32Array && along === 1 && down === wide) return { values: start === 0 && values.length === high * wide ? values : values.subarray(start, start + high * wide), rows: high, columns: wide };
  const out = values instanceof Float64Array ? new Float64Array(high * wide) : new Float32Array(high * wide);
  for (let r = 0; r < high; r++) for (let c = 0; c < wide; c++) out[r * wide + c] = values[start + r * down + c * along] ?? NaN;
  return { values: out, rows: high, columns: wide };
}

// The least level at which rows × columns cells are no more than `most`: each level halves both.
export function level(rows: number, columns: number, most: number): number {
  let k = 0;
  while (Math.ceil(rows / 2 ** k) * Math.ceil(columns / 2 ** k) > most) k++;
  return k;
}
