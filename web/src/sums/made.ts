// What a cell's number is made of, and the sum of it: products of factors, and what is added, in double.

import type { Terms } from "../run/types";

// about: numbers that a formula has beside the terms.
export interface Made { factors: Record<string, number[]>; added?: Record<string, number>; about?: Record<string, number> }

const finite = (x: number): number | null => (Number.isFinite(x) ? x : null);

// A cell of the softmax of a row.
export function soft(row: readonly number[], at: number): Made {
  const top = Math.max(...row), e = row.map((x) => Math.exp(x - top)), sum = e.reduce((a, b) => a + b, 0);
  return { factors: { e: [e[at] ?? NaN], over: [1 / sum] }, about: { x: row[at] ?? NaN, top, sum } };
}

// label: the name that people read for a factor or what is added.
export function summed({ factors, added = {}, about = {} }: Made, label: (name: string) => string): Terms {
  const columns = Object.entries(factors), length = Math.max(0, ...columns.map(([, x]) => x.length));
  const products = Array.from({ length }, (_, i) => columns.reduce((product, [, x]) => product * (x[i] ?? NaN), 1)), summands = [...products, ...Object.values(added)];
  const single = columns.filter(([, x]) => x.length === 1).map(([name, x]) => [name, x[0] ?? NaN] as const);
  return {
    factors: Object.fromEntries(columns.map(([name, x]) => [label(name), x.map(finite)])), added: Object.fromEntries(Object.entries(added).map(([name, x]) => [label(name), finite(x)])),
    numbers: Object.fromEntries([...single, ...Object.entries(added), ...Object.entries(about)].map(([name, x]) => [name, finite(x)])),
    summands: summands.map(finite), total: finite(summands.reduce((a, b) => a + b, 0)), count: summands.length,
  };
}
