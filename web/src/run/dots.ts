// The dot products of a head's queries and keys, before they are scaled: sums of products of tensors that ran, for a part of the table.

import { slice } from "./slices";
import { axes, type Run, type Tensor } from "./types";

export interface Part { rows: readonly [number, number]; columns: readonly [number, number] } // from, and after the last

const HEADS = new Set(["H", "G"]);

// The part of at most `most` rows and columns that has a query and a key. Unnamed, it is the end of both.
export function part(rows: number, columns: number, most: number, row: number, column: number): Part {
  const cut = (size: number, at: number): [number, number] => {
    const from = Math.max(0, Math.min(size - most, (at < 0 ? size : at) - Math.floor(most / 2)));
    return [from, Math.min(size, from + most)];
  };
  return { rows: cut(rows, row), columns: cut(columns, column) };
}

// Where a key's rows lie: in the step's own tensor, or in those of the steps from `begin`, whose rows the cache holds. Undefined: not all are here.
export function kept(path: string, keys: number, step: number, begin: number, all: (step: number) => readonly Tensor[]): { tensor: Tensor; rows: number }[] | undefined {
  const of = (k: number): { tensor: Tensor; rows: number }[] => all(k).filter((t) => t.path === path).map((tensor) => ({ tensor, rows: tensor.shape[rowAxis(tensor)] ?? 0 }));
  const own = of(step), found = own[0]?.rows === keys ? own : Array.from({ length: step - begin + 1 }, (_, i) => of(begin + i)).flat();
  return found.reduce((n, one) => n + one.rows, 0) === keys ? found : undefined;
}

const rowAxis = (t: Tensor): number => axes(t).findIndex((a) => a === "T" || a === "S");

// The rows from `from` to `to` of a tensor, of the head that a query head reads.
export async function rowsOf(run: string, t: Tensor, head: number, heads: number, from: number, to: number): Promise<Float64Array[]> {
  const names = axes(t), row = rowAxis(t), own = names.findIndex((a) => HEADS.has(a)), width = t.shape.at(-1) ?? 0;
  const at = t.shape.map((_, i) => (i === row ? `${from}:${to}` : i === own ? Math.floor((head * (t.shape[own] ?? 1)) / heads) : i === t.shape.length - 1 ? ":" : 0));
  const { values } = await slice(run, t.n, at.join());
  return Array.from({ length: to - from }, (_, r) => Float64Array.from(values.subarray(r * width, (r + 1) * width)));
}

// Those rows of what lies under a path, for the keys from the first of `columns`. of: the table whose columns are its keys. Undefined: they are not all here.
export async function keyRows(run: Run, path: string, of: Tensor, head: number, columns: Part["columns"], all: (step: number) => readonly Tensor[]): Promise<Float64Array[] | undefined> {
  const names = axes(of), keys = of.shape[names.indexOf("S")] ?? 0, heads = of.shape[names.indexOf("H")] ?? 1;
  const begin = Math.max(0, run.steps.findLastIndex((s) => s.step <= of.step && s.past === 0)), places = kept(path, keys, of.step, begin, all), out: Float64Array[] = [];
  if (!places) return undefined;
  let before = 0;
  for (const one of places) {
    const from = Math.max(0, columns[0] - before), to = Math.min(one.rows, columns[1] - before);
    if (to > from) out.push(...(await rowsOf(run.run, one.tensor, head, heads, from, to)));
    before += one.rows;
  }
  return out;
}

// Row by row. Undefined: a tensor of theirs is not here.
export async function dots(run: Run, scores: Tensor, head: number, { rows, columns }: Part, all: (step: number) => readonly Tensor[]): Promise<Float64Array | undefined> {
  const heads = scores.shape[axes(scores).indexOf("H")] ?? 1, half = scores.inputs.length / 2, wide = columns[1] - columns[0], out = new Float64Array((rows[1] - rows[0]) * wide);
  if (half < 1 || !Number.isInteger(half)) return undefined;
  for (let i = 0; i < half; i++) { // latent attention: what a head has of its own, then what turns
    const queries = all(scores.step).find((t) => t.path === scores.inputs[i]);
    if (!queries || rowAxis(queries) < 0) return undefined;
    const k = await keyRows(run, scores.inputs[half + i] ?? "", scores, head, columns, all);
    if (!k) return undefined;
    const q = await rowsOf(run.run, queries, head, heads, rows[0], rows[1]);
    q.forEach((a, r) => k.forEach((b, c) => { let sum = out[r * wide + c] ?? 0; for (let n = 0; n < b.length; n++) sum += (a[n] ?? 0) * (b[n] ?? 0); out[r * wide + c] = sum; }));
  }
  return out;
}
