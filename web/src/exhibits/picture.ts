// What the pictures of exhibits share: how a row of numbers is written, where numbers lie on an axis, and where names fit beside them.

import type { BoxDocument } from "./documents";
import { count, number } from "../tensor/number";

export type Cell = string | number | null;

// Counts with their thousands apart, where all are; else as every number is written.
export function writer(values: readonly Cell[]): (x: Cell) => string {
  const counts = values.every((v) => typeof v !== "number" || Number.isInteger(v));
  return (x) => (typeof x === "string" ? x : x === null ? "" : counts ? count(x) : number(x));
}

export interface Axis { low: number; high: number; log: boolean; at: (x: number) => number }

const FAR = 64; // times the least that the greatest number may be before an axis counts in powers

// An axis from `from` to `to` on the picture. base: an axis of heights begins at 0 where its numbers are near enough.
export function axis(values: readonly number[], from: number, to: number, base = false): Axis {
  const least = Math.min(...values), most = Math.max(...values), log = least > 0 && most / least >= FAR;
  const low = base && !log && least > 0 && least < 0.6 * most ? 0 : least, high = most, place = (x: number): number => (log ? Math.log(x) : x);
  const wide = place(high) - place(low);
  return { low, high, log, at: (x) => from + (wide > 0 ? ((to - from) * (place(x) - place(low))) / wide : (to - from) / 2) };
}

// Heights for names, never closer than `apart`, in the order of where they belong.
export function spread(wanted: readonly number[], apart: number, bottom: number): number[] {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y), out: number[] = [];
  order.forEach((one, n) => { one.y = n === 0 ? one.y : Math.max(one.y, (order[n - 1]?.y ?? 0) + apart); });
  for (let n = order.length - 1, most = bottom; n >= 0; n--, most -= apart) { const one = order[n]; if (one) out[one.i] = Math.min(one.y, most); }
  return out;
}

// Letters that a text takes in a line; a Chinese one is as wide as two.
export const letters = (text: string): number => [...text].reduce((n, c) => n + ((c.codePointAt(0) ?? 0) >= 0x2e80 ? 2 : 1), 0);

// Letters that a table takes across, with the space between its columns.
export const across = (columns: readonly string[], rows: readonly (readonly Cell[])[]): number =>
  columns.reduce((sum, c, j) => sum + 3 + Math.max(letters(c), ...rows.map((r) => letters(writer(rows.map((x) => x[j] ?? null))(r[j] ?? null)))), 0);

export function shortened(text: string, most: number): string {
  let out = text;
  while (letters(out) > most) out = `${[...out.replace(/…$/, "")].slice(0, -1).join("")}…`;
  return out;
}

export interface Nested { box: BoxDocument; inner: Nested[] }

// Boxes of a stack, each with those that lie in it.
export function nested(boxes: readonly BoxDocument[]): Nested[] {
  const out: Nested[] = [], path: Nested[] = [];
  for (const box of boxes) {
    while (path.length > 0 && (path.at(-1)?.box.depth ?? 0) >= box.depth) path.pop();
    const one: Nested = { box, inner: [] };
    (path.at(-1)?.inner ?? out).push(one);
    path.push(one);
  }
  return out;
}

export type Row = number[];

// Panels of two columns as rows: one that is wide has a row to itself, and two that are not share one.
export function lined(wide: readonly boolean[]): Row[] {
  const out: Row[] = [];
  let open: Row | undefined;
  wide.forEach((own, i) => {
    if (!own && open) { open.push(i); open = undefined; return; }
    const row = [i];
    out.push(row);
    open = own ? undefined : row;
  });
  return out;
}

export interface Size { wide: number; high: number }
export interface Spot { x: number; y: number }

// Boxes in reading order on a picture this wide: each as high as it fits, but not above the one before, and as far left.
export function packed(boxes: readonly Size[], width: number, gap: Size): Spot[] {
  const out: (Size & Spot)[] = [];
  const free = (box: Size, x: number, y: number): boolean => out.every((o) => x >= o.x + o.wide + gap.wide || o.x >= x + box.wide + gap.wide || y >= o.y + o.high + gap.high || o.y >= y + box.high + gap.high);
  for (const box of boxes) {
    const downs = [0, ...out.map((o) => o.y + o.high + gap.high)].sort((a, b) => a - b), rights = [0, ...out.map((o) => o.x + o.wide + gap.wide)].sort((a, b) => a - b);
    const below = { x: 0, y: downs.at(-1) ?? 0 };
    const spot = downs.filter((y) => y >= (out.at(-1)?.y ?? 0)).flatMap((y) => rights.map((x) => ({ x, y }))).find(({ x, y }) => x + box.wide <= width && free(box, x, y)) ?? below;
    out.push({ ...box, ...spot });
  }
  return out.map(({ x, y }) => ({ x, y }));
}
