// From logits to the next token, stage by stage over the whole vocabulary: the engine's sampler (ops/sampling) once more, number by number.
// Sums are float64, what the engine keeps as float32 is rounded to it here too, so that the same setting takes the same token.

import { uniform } from "./uniform";

export interface Sampling {
  temperature: number; top_k: number; top_p: number; min_p: number; repetition: number; presence: number; frequency: number; seed: number;
}

export const OFF: Sampling = { temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition: 1, presence: 0, frequency: 0, seed: 0 };

// The settings of a run without any.
export const GREEDY: Sampling = { ...OFF, temperature: 0 };

export interface History { prompt: readonly number[]; output: readonly number[] }

export type Name = "logits" | "repetition" | "presence" | "frequency" | "temperature" | "top_k" | "top_p" | "min_p" | "probabilities";
// A number for each token of the vocabulary; -Infinity, of probabilities 0, for those that were cut.
export interface Stage { name: Name; values: Float64Array; kept: number }

const COLDEST = 1e-30; // a colder temperature overflows float32

type Change = (x: Float64Array, s: Sampling, h: History, round: (n: number) => number) => Float64Array;

const counts = (output: readonly number[]): Map<number, number> => output.reduce((m, id) => m.set(id, (m.get(id) ?? 0) + 1), new Map<number, number>());

const CHANGES: [Name & keyof Sampling, Change][] = [
  ["repetition", (x, s, h, round) => {
    const r = round(s.repetition);
    for (const id of new Set([...h.prompt, ...h.output])) x[id] = round((x[id] ?? 0) > 0 ? (x[id] ?? 0) / r : (x[id] ?? 0) * r);
    return x;
  }],
  ["presence", (x, s, h, round) => {
    for (const id of new Set(h.output)) x[id] = round((x[id] ?? 0) - round(s.presence));
    return x;
  }],
  ["frequency", (x, s, h, round) => {
    for (const [id, n] of counts(h.output)) x[id] = round((x[id] ?? 0) - round(round(s.frequency) * n));
    return x;
  }],
  ["temperature", (x, s, _, round) => {
    const top = greatest(x), t = round(Math.max(s.temperature, COLDEST));
    return x.map((n) => round(round(n - top) / t));
  }],
];

const CUTS: [Name & keyof Sampling, (x: Float64Array, setting: number, round: (n: number) => number) => Set<number> | null][] = [
  ["top_k", (x, k) => (k >= alive(x) ? null : new Set(ranked(x).slice(0, k)))],
  ["top_p", (x, p) => {
    const order = ranked(x), top = greatest(x), total = x.reduce((sum, n) => sum + Math.exp(n - top), 0);
    let mass = 0, k = 0;
    while (k < order.length && (k === 0 || mass < p * total)) mass += Math.exp((x[order[k++] ?? 0] ?? 0) - top);
    return new Set(order.slice(0, k));
  }],
  ["min_p", (x, share, round) => {
    const least = round(greatest(x) + Math.log(share)), kept = new Set<number>();
    x.forEach((n, id) => { if (n >= least && n > -Infinity) kept.add(id); });
    return kept;
  }],
];

const greatest = (x: Float64Array): number => x.reduce((a, b) => (b > a ? b : a), -Infinity);
const alive = (x: Float64Array): number => x.reduce((n, v) => n + (v > -Infinity ? 1 : 0), 0);

// Ids from the likeliest down, of equals the lower first.
export function ranked(x: ArrayLike<number>): number[] {
  return Array.from(x, (_, id) => id).filter((id) => (x[id] ?? -Infinity) > -Infinity).sort((a, b) => (x[b] ?? 0) - (x[a] ?? 0) || a - b);
}

// Every stage that the settings switch on, in order. At temperature 0 there are no cuts and no probabilities. wide: logits are float64.
export function stages(logits: ArrayLike<number>, s: Sampling, h: History, wide = false): Stage[] {
  const round = wide ? (n: number) => n : Math.fround;
  let x: Float64Array = Float64Array.from(logits);
  const out: Stage[] = [{ name: "logits", values: x, kept: x.length }], greedy = s.temperature === 0;
  for (const [name, change] of CHANGES) {
    if (s[name] === OFF[name] || (name === "temperature" && greedy)) continue;
    x = change(x.slice(), s, h, round);
    out.push({ name, values: x, kept: x.length });
  }
  if (greedy) return out;
  for (const [name, cut] of CUTS) {
    if (s[name] === OFF[name]) continue;
    const kept = cut(x, s[name], round);
    if (kept) x = x.map((n, id) => (kept.has(id) ? n : -Infinity));
    out.push({ name, values: x, kept: alive(x) });
  }
  return [...out, probabilities(x)];
}

export function probabilities(x: Float64Array): Stage {
  const top = greatest(x), e = x.map((n) => Math.exp(n - top)), total = e.reduce((a, b) => a + b, 0);
  return { name: "probabilities", values: e.map((n) => n / total), kept: alive(x) };
}

export interface DrawnToken { id: number; u: number | null; low: number; high: number } // the span of [0, 1) that takes this token, by id

// The token that these stages give at a step, with the number that drew it.
export function drawToken(all: readonly Stage[], s: Sampling, step: number): DrawnToken {
  const last = all.at(-1)?.values ?? new Float64Array();
  if (s.temperature === 0) return { id: last.reduce((best, n, id) => (n > (last[best] ?? -Infinity) ? id : best), 0), u: null, low: 0, high: 1 };
  const u = uniform(s.seed, step), total = last.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (let id = 0; id < last.length; id++) {
    const before = sum;
    sum += last[id] ?? 0;
    if (sum > u * total) return { id, u, low: before / total, high: sum / total };
  }
  return { id: last.length - 1, u, low: 1, high: 1 };
}
