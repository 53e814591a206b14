// The sum that made a cell, written out with its numbers: (0.310·-1.200 + 0.500·0.200 + … 30 more) / √32 + 0.250

import { number } from "./number";

export interface Sum { factors: Record<string, (number | null)[]>; added: Record<string, number | null>; summands: (number | null)[] }

const SHOWN = 3; // summands that are written out before the rest is counted

// How many of the summands are products of factors; those after them are added as they are.
export const products = ({ added, summands }: Sum): number => summands.length - Object.keys(added).length;

// Factors that are the same in every product are written outside of the brackets.
export function outside(sum: Sum): { inner: string[]; outer: string[] } {
  const names = Object.keys(sum.factors);
  const outer = products(sum) > 1 ? names.filter((n) => sum.factors[n]?.every((x) => x === sum.factors[n]?.[0])) : [];
  return outer.length === names.length ? { inner: names, outer: [] } : { inner: names.filter((n) => !outer.includes(n)), outer };
}

// As letters: Σ q·k · scale + b
export function symbols(sum: Sum): string {
  const { inner, outer } = outside(sum), body = inner.map((n) => (n.includes(" | ") ? `(${n})` : n)).join("·");
  const product = (products(sum) > 1 ? `Σ ${body}` : body) + outer.map((n) => (n.startsWith("1/") ? ` / ${n.slice(2)}` : ` · ${n}`)).join("");
  return joined([product, ...Object.keys(sum.added)]);
}

// A piece of a formula; a number knows where it is: in the column `key` (a factor, "+" what is added, "?" a template's) the i-th.
export interface Part { text: string; at?: { key: string; i: number } }

export const flat = (parts: readonly Part[]): string => parts.map((p) => p.text).join("");

// As numbers; more: the text for the rest, by its count.
export function parts(sum: Sum, more: (count: number) => string): Part[] {
  const { inner, outer } = outside(sum), n = products(sum);
  const term = (i: number): Part[] => between(inner.map((name) => [{ text: number(sum.factors[name]?.[i]), at: { key: name, i } }]), "·");
  const shown = Math.min(n, n <= SHOWN + 2 ? n : SHOWN);
  const all = Array.from({ length: shown }, (_, i) => term(i));
  if (shown < n) all.push([{ text: `… ${more(n - shown)}` }]);
  const brackets = outer.length > 0, body = between(all, " + ");
  const bracketed = brackets ? [{ text: "(" }, ...body, { text: ")" }, ...outer.map((name) => ({ text: scaled(sum.factors[name]?.[0] ?? NaN) }))] : body;
  return signed(between([bracketed, ...Object.entries(sum.added).map(([name, x]) => [{ text: number(x), at: { key: `+${name}`, i: 0 } }])], " + "));
}

const between = (groups: readonly Part[][], sign: string): Part[] => groups.filter((g) => flat(g) !== "").flatMap((g, i) => (i > 0 ? [{ text: sign }, ...g] : g));

// A minus behind a sign is one sign: + -0.2 is − 0.2, and − -0.2 is + 0.2.
function signed(all: readonly Part[]): Part[] {
  const out = all.map((p) => ({ ...p }));
  out.forEach((p, i) => {
    const before = out[i - 1], sign = before?.text.at(-2);
    if (!before || !/[+−] $/.test(before.text) || !/^[-−]/.test(p.text)) return;
    before.text = `${before.text.slice(0, -2)}${sign === "+" ? "−" : "+"} `;
    p.text = p.text.slice(1).trimStart();
  });
  return out;
}

// Summands with their signs between: 0.5, -0.2 is 0.5 − 0.2
const joined = (parts: string[]): string => parts.filter((p) => p !== "").join(" + ").replace(/\+ [-−]\s?/g, "− ");

const SOFTMAX = "e^({x} − {top})"; // how the template of a softmax begins

// A template with its numbers; say: the words of a template that is a sentence.
export function put(template: string, numbers: Record<string, number | null>, say: (key: "formula.expert" | "formula.hidden", values: Record<string, string>) => string): Part[] {
  if (template.startsWith(SOFTMAX) && numbers["x"] === null) return [{ text: say("formula.hidden", {}) }];
  if (template === "formula.expert") return [{ text: say(template, { expert: String(numbers["expert"]), score: number(numbers["score"]) }) }];
  return signed(template.split(/(\{\w+\})/).filter(Boolean).map((text) => {
    const name = /^\{(\w+)\}$/.exec(text)?.[1];
    return name === undefined ? { text } : { text: number(numbers[name] ?? NaN), at: { key: `?${name}`, i: 0 } };
  }));
}

// 0.17677… is / √32; 0.3 is · 0.300
function scaled(x: number): string {
  const squared = x ** -2, nearest = Math.round(squared);
  if (x > 0 && x < 1 && nearest > 1 && Math.abs(squared - nearest) < 1e-6 * squared) return Number.isInteger(Math.sqrt(nearest)) ? ` / ${Math.sqrt(nearest)}` : ` / √${nearest}`;
  return ` · ${number(x)}`;
}
