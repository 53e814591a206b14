// The sum that made a cell, written out with its numbers: (0.310·-1.200 + 0.500·0.200 + … 30 more) / √32

import { number } from "./number";

export interface Sum { factors: Record<string, (number | null)[]>; summands: (number | null)[] }

const SHOWN = 3; // summands that are written out before the rest is counted

// Factors that are the same in every summand stand outside of the brackets.
export function outside({ factors, summands }: Sum): { inner: string[]; outer: string[] } {
  const names = Object.keys(factors);
  const outer = summands.length > 1 ? names.filter((n) => factors[n]?.every((x) => x === factors[n]?.[0])) : [];
  return outer.length === names.length ? { inner: names, outer: [] } : { inner: names.filter((n) => !outer.includes(n)), outer };
}

// As letters: Σ q·k · scale
export function symbols(sum: Sum): string {
  const { inner, outer } = outside(sum), body = inner.join("·");
  return (sum.summands.length > 1 ? `Σ ${body}` : body) + outer.map((n) => ` · ${n}`).join("");
}

// As numbers; more: how the rest is told, given its count.
export function numbers(sum: Sum, more: (count: number) => string): string {
  const { inner, outer } = outside(sum), n = sum.summands.length;
  const term = (i: number): string => inner.map((name) => number(sum.factors[name]?.[i])).join("·");
  const shown = Math.min(n, n <= SHOWN + 2 ? n : SHOWN);
  const parts = Array.from({ length: shown }, (_, i) => term(i));
  if (shown < n) parts.push(`… ${more(n - shown)}`);
  const body = parts.join(" + ");
  if (outer.length === 0) return body;
  return `(${body})` + outer.map((name) => scaled(sum.factors[name]?.[0] ?? NaN)).join("");
}

// 0.17677… is / √32; 0.3 is · 0.300
function scaled(x: number): string {
  const squared = x ** -2, whole = Math.round(squared);
  if (x > 0 && x < 1 && whole > 1 && Math.abs(squared - whole) < 1e-6 * squared) return Number.isInteger(Math.sqrt(whole)) ? ` / ${Math.sqrt(whole)}` : ` / √${whole}`;
  return ` · ${number(x)}`;
}
