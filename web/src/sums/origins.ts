// Where the numbers of a cell's terms stand: each factor and summand is looked for in the tensors that the cell was made from, and counts as
// found only where the very number stands. So a link leads to the number that was multiplied, or there is none. A tensor that was computed
// again beside a fused kernel may differ in the last bits from what the terms were made of.

import { axes, type Run, type Step, type Tensor } from "../run/types";
import { makers } from "../run/sources";
import type { Sum } from "../tensor/formula";

export interface Origin { path: string; cell: number[]; step: number }
export type Found = readonly (Origin | undefined)[];
export type Origins = ReadonlyMap<string, Found>; // by "factor", "+added", "?number"

type At = (number | null)[]; // an index of each axis; null: all along it
export interface Operand { tensor: Tensor; at: At }
// A stretch of an operand: its numbers in order, and the cell of each.
export interface Stretch { values: ArrayLike<number>; cell: (i: number) => number[]; of: Tensor }

const NEAR: Record<string, number> = { float32: 2e-6, float16: 2e-3, bfloat16: 1.6e-2, float64: 1e-12 }; // of a number at least 1, by rounding
const MOST = 1 << 16; // numbers of an operand that are looked through
const LOOKED_UP = new Set(["x", "y", "top", "gate", "up", "score", "weight", "gain", "bias"]); // numbers of a template that stand in a tensor
const TOKENS = new Set(["B", "T", "S", "N"]);

// Query head 5 of 8 reads key/value head 1 of 2.
const grouped = (head: number | undefined, heads: number, size: number): number | null => (head === undefined ? null : Math.floor((head * size) / heads));

// The operands of a cell in the order of its factors: inputs, then weights. steps: the tensors of every step up to the cell's own;
// weights: of the model; id: of the token whose row of a table it is.
export function operands(run: Pick<Run, "steps">, t: Tensor, cell: readonly number[], steps: readonly (readonly Tensor[])[], weights: readonly Tensor[], id: number | undefined, expert: number | undefined): Operand[] {
  const own = axes(t), index = (letter: string): number | undefined => cell[own.indexOf(letter)];
  const now = steps[t.step] ?? [], paths = makers(t, now), past = run.steps.find((s) => s.step === t.step)?.past ?? 0;
  const out: Operand[] = [];
  paths.forEach((path, i) => {
    const key = t.result === "scores" && i >= paths.length / 2, value = t.result === "attention" && i === 1;
    for (const { tensor, from } of records(path, t, steps, run.steps, key || value)) {
      const s = key ? index("S") : undefined, rows = tensor.shape[axes(tensor).indexOf("T")] ?? 0;
      if (s !== undefined && axes(tensor).includes("T") && (s < from || s >= from + rows)) continue;
      out.push({ tensor, at: placeOf(tensor, t, cell, key && s !== undefined ? s - from : value ? null : undefined) });
    }
  });
  for (const path of t.weights) {
    const w = weights.find((one) => one.path === path);
    if (w) out.push(...rowsOf(w, t, cell, { id, expert, position: past + (index("T") ?? 0) }));
  }
  return out;
}

// The records at a path: the newest before the cell's own, or, of keys and values, that of every step, with the position of its first row.
function records(path: string, t: Tensor, steps: readonly (readonly Tensor[])[], of: readonly Pick<Step, "step" | "past">[], every: boolean): { tensor: Tensor; from: number }[] {
  const out: { tensor: Tensor; from: number }[] = [];
  for (let k = t.step; k >= 0; k--) {
    const tensor = steps[k]?.findLast((s) => s.path === path && s.n < t.n);
    if (!tensor) continue;
    out.unshift({ tensor, from: path.startsWith("encoder.") ? 0 : (of.find((s) => s.step === k)?.past ?? 0) });
    if (!every || !axes(tensor).includes("T")) break;
  }
  return out;
}

// The cells of an input that the cell was made from. row: along its tokens, where that is not the cell's own; null: all.
function placeOf(x: Tensor, t: Tensor, cell: readonly number[], row: number | null | undefined): At {
  const own = axes(t), names = axes(x), index = (letter: string): number | undefined => cell[own.indexOf(letter)];
  const heads = t.shape[own.indexOf(own.includes("H") ? "H" : "G")] ?? 1;
  return names.map((a, i) => {
    const size = x.shape[i] ?? 1;
    if (size === 1) return 0;
    if (a === "B" || a === "N") return index(a) ?? null;
    if (a === "T") return row !== undefined ? row : t.result === "last row" ? size - 1 : (index("T") ?? (index("N") === undefined ? null : (t.rows?.[index("N") ?? 0] ?? null)));
    if (a === "S") return index("S") ?? (t.result === "attention" ? null : (index("T") ?? null));
    if (t.result === "product") return null;
    if (a === "H" || a === "G") return grouped(index("H") ?? index("G"), heads, size);
    if (t.result === "rotation" && i === names.length - 1) return null;
    const at = index(a);
    return at !== undefined && at < size ? at : null;
  });
}

// The numbers of a weight that the cell may have been multiplied by. Rows of a matrix are the cell's own channels; those that keys and values
// share with heads in between have two places.
function rowsOf(w: Tensor, t: Tensor, cell: readonly number[], { id, expert, position }: { id: number | undefined; expert: number | undefined; position: number }): Operand[] {
  const own = axes(t), channels = own.map((_, i) => i).filter((i) => !TOKENS.has(own[i] ?? ""));
  const sizes = channels.map((i) => t.shape[i] ?? 1), total = sizes.reduce((n, size) => n * size, 1), flat = channels.reduce((n, i) => n * (t.shape[i] ?? 1) + (cell[i] ?? 0), 0);
  const last = cell.at(-1) ?? 0, width = sizes.at(-1) ?? 1, head = cell[own.indexOf("H")] ?? cell[own.indexOf("G")];
  const [high = 1, wide = 1, deep = 1] = w.shape, at = (...all: At[]): Operand[] => all.map((one) => ({ tensor: w, at: one }));
  if (w.shape.length === 1) return high === total ? at([flat]) : high === width ? at([last]) : at([null]);
  if (w.shape.length === 3) return expert === undefined || expert >= high || last >= wide ? [] : at([expert, last, deep > 1 ? null : 0]);
  if (w.shape.length !== 2) return [];
  if (t.result === "embedding") return [id, position].flatMap((row) => (row !== undefined && row < high && last < wide ? at([row, last]) : []));
  if (t.result === "scores") return at([null, head ?? null]);
  if (high === total) return at([flat, null]);
  if (high === width) return at([last, null]);
  const heads = t.shape[own.indexOf("H")] ?? t.shape[own.indexOf("G")] ?? 0, each = heads > 0 ? high / heads : 0;
  return head !== undefined && Number.isInteger(each) && each >= width ? at([head * each + last, null], [head * each + each - width + last, null]) : [];
}

// How many numbers an operand has, and the cell of each in their order.
export const size = ({ tensor, at }: Operand): number => at.reduce<number>((n, one, i) => n * (one === null ? (tensor.shape[i] ?? 1) : 1), 1);
export function cellsOf({ tensor, at }: Operand): (i: number) => number[] {
  const free = at.map((one, i) => (one === null ? i : -1)).filter((i) => i >= 0);
  return (n) => {
    const cell = at.map((one) => one ?? 0);
    for (let j = free.length - 1; j >= 0; j--) {
      const axis = free[j] ?? 0, extent = tensor.shape[axis] ?? 1;
      cell[axis] = n % extent;
      n = Math.floor(n / extent);
    }
    return cell;
  };
}

// Where the numbers of a column stand: the longest stretches that have them in their order. A number alone counts where no other cell of the
// stretch has it.
const equal = (a: number | undefined, b: number | null | undefined, near: number): boolean => a === b || (near > 0 && typeof a === "number" && typeof b === "number" && Math.abs(a - b) <= near * Math.max(1, Math.abs(b)));

export function matched(column: readonly (number | null)[], stretches: readonly Stretch[]): Found {
  const out: (Origin | undefined)[] = column.map(() => undefined);
  for (let p = 0; p < column.length;) {
    let best = { length: 0, from: 0, of: undefined as Stretch | undefined };
    for (const s of stretches) {
      const near = s.of.source === "recomputed" || s.of.result === "shares" ? (NEAR[s.of.dtype] ?? 0) : 0; // a kernel's shares are in float32, a sum's in float64
      for (let from = 0; from < s.values.length && best.length < column.length - p; from++) {
        let length = 0;
        while (p + length < column.length && from + length < s.values.length && equal(s.values[from + length], column[p + length], near)) length++;
        if (length > best.length) best = { length, from, of: s };
      }
      if (best.length === column.length - p) break;
    }
    const { length, from, of } = best, alone = length === 1 && of !== undefined && of.values.length > 1;
    if (of && !(alone && Array.prototype.filter.call(of.values, (x: number) => x === column[p]).length > 1))
      for (let i = 0; i < length; i++) out[p + i] = { path: of.of.path, cell: of.cell(from + i), step: of.of.step };
    p += Math.max(1, length);
  }
  return out;
}

// Of every column of a sum the places of its numbers. read: an operand's numbers.
export async function origins(sum: Sum & { numbers: Record<string, number | null> }, all: readonly Operand[], read: (o: Operand) => Promise<ArrayLike<number>>): Promise<Origins> {
  const stretches: Stretch[] = [];
  for (const [i, values] of (await Promise.all(all.map((o) => (size(o) > MOST ? [] : read(o).catch(() => []))))).entries()) {
    const operand = all[i];
    if (operand && values.length > 0) stretches.push({ values, cell: cellsOf(operand), of: operand.tensor });
  }
  const out = new Map<string, Found>(), used = new Set<Tensor>();
  const search = (key: string, column: readonly (number | null)[], rest: readonly Stretch[]): void => {
    const places = matched(column, rest);
    if (!places.some(Boolean)) return;
    out.set(key, places);
    for (const one of places) for (const s of rest) if (s.of.path === one?.path && s.of.step === one.step) used.add(s.of);
  };
  const unused = (): Stretch[] => [...stretches.filter((s) => !used.has(s.of)), ...stretches.filter((s) => used.has(s.of))]; // a tensor that another factor has is looked through last
  for (const [name, column] of Object.entries(sum.factors)) if (column.length === 1 || column.some((x) => x !== column[0])) search(name, column, unused());
  for (const [name, x] of Object.entries(sum.added)) search(`+${name}`, [x], unused());
  for (const [name, x] of Object.entries(sum.numbers)) if (LOOKED_UP.has(name)) search(`?${name}`, [x], stretches);
  return out;
}
