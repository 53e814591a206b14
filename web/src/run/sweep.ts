// A sweep as an address holds it, and its numbers as a table. Every field of a link is checked: its text may be anything.

import type { SweepDocument } from "./documents";
import { axes, type Tensor } from "./types";

// clean: the prompt whose cells are put into the run's, one after another; words: whose logits are compared, both "" for the likeliest.
export interface Sweep { clean: string; over: string; by: string; words: [string, string] }

export const NONE: Sweep = { clean: "", over: "", by: "T", words: ["", ""] };
const LONGEST = { clean: 4000, over: 200, by: 20, word: 60 };

// What a block's mixing part made, before its last product: of each head, if it has any.
const MADE = ["attn.z", "mamba.y_gated", "delta.y_gated", "conv.y", "out"];

// The tensors that are offered first: the first of MADE that the run's last stack of blocks has.
export function preset(tensors: readonly Tensor[]): Pick<Sweep, "over" | "by"> & { first: string } {
  const places = tensors.flatMap((t) => { const match = /^((?:decoder\.|encoder\.)?)layers\.\d+\.(.*)$/.exec(t.path); return match ? [{ stack: match[1] ?? "", name: match[2] ?? "", tensor: t }] : []; });
  const stack = places.at(-1)?.stack;
  for (const name of MADE) {
    const own = places.find((p) => p.stack === stack && p.name === name)?.tensor, heads = own && axes(own).indexOf("H");
    if (own && heads !== undefined) return { first: own.path, over: `${stack}layers.*.${name}`, by: heads >= 0 && (own.shape[heads] ?? 1) > 1 ? "H,T" : "T" };
  }
  return { first: "", over: "", by: "T" };
}

export const sound = (s: Sweep): boolean =>
  s.clean !== "" && s.clean.length <= LONGEST.clean && s.over !== "" && s.over.length <= LONGEST.over && /^[A-Z](?:[ ,]+[A-Z])*$/.test(s.by) && s.by.length <= LONGEST.by
  && s.words.every((w) => w.length <= LONGEST.word) && (s.words[0] === "") === (s.words[1] === "");

export const written = (s: Sweep): string => JSON.stringify([s.clean, s.over, s.by, ...s.words]);

export function read(text: string): Sweep | undefined {
  let parsed: unknown;
  try { parsed = JSON.parse(text || "null"); } catch { return undefined; }
  if (!Array.isArray(parsed) || parsed.length !== 5 || !parsed.every((w) => typeof w === "string")) return undefined;
  const [clean, over, by, a, b] = parsed as [string, string, string, string, string], sweep: Sweep = { clean, over, by, words: [a, b] };
  return sound(sweep) ? sweep : undefined;
}

// A row of the table: its tensor, the indices of all axes but the last, and the numbers along that.
export interface Row { path: string; at: number[]; values: (number | null)[] }

export function rows(s: SweepDocument): Row[] {
  const wide = s.shape.at(-1) ?? 1, outer = s.shape.slice(1, -1), each = outer.reduce((n, x) => n * x, 1);
  return Array.from({ length: s.paths.length * each }, (_, n) => {
    let rest = n % each;
    const at = outer.map((_, i) => { const inner = outer.slice(i + 1).reduce((m, x) => m * x, 1), own = Math.floor(rest / inner); rest %= inner; return own; });
    return { path: s.paths[Math.floor(n / each)] ?? "", at, values: s.values.slice(n * wide, (n + 1) * wide) };
  });
}

// The index of a cell in its tensor, whose axes are `letters`: a number for each axis of the sweep, ":" for the others.
export const index = (letters: readonly string[], by: readonly string[], at: readonly number[]): string => letters.map((l) => (by.includes(l) ? String(at[by.indexOf(l)]) : ":")).join();

// How far a number is from the base, as a share of the furthest.
export const far = (s: SweepDocument, x: number | null): number => {
  const most = s.values.reduce<number>((m, v) => Math.max(m, Math.abs((v ?? s.base ?? 0) - (s.base ?? 0))), 0);
  return x === null || most === 0 ? 0 : (x - (s.base ?? 0)) / most;
};
