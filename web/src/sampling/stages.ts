// From logits to the next token, stage by stage over the whole vocabulary: the engine's sampler (ops/sampling) once more, number by number.
// Sums are float64, what the engine keeps as float32 is rounded to it here too, so that the same setting takes the same token.

import { Kept, leading } from "./kept";
import { uniform } from "./uniform";

export interface Sampling {
  temperature: number; top_k: number; top_p: number; min_p: number; repetition: number; presence: number; frequency: number; seed: number;
}

export const OFF: Sampling = { temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition: 1, presence: 0, frequency: 0, seed: 0 };

// The settings of a run without any.
export const GREEDY: Sampling = { ...OFF, temperature: 0 };

export interface History { prompt: readonly number[]; output: readonly number[] }

export type Name = "logits" | "repetition" | "presence" | "frequency" | "temperature" | "top_k" | "top_p" | "min_p" | "probabilities";
// A stage's numbers of the vocabulary, each divided by `total`. What `cut` does not keep is -Infinity, of probabilities 0.
export class Stage {
  private all: Float64Array | undefined;
  readonly kept: number;

  constructor(readonly name: Name, private readonly numbers: Float64Array, private readonly cut: Kept | null = null, private readonly total = 1, kept = numbers.length) {
    this.kept = cut?.count ?? kept;
  }

  at(id: number): number {
    return this.cut && !this.cut.has(id) ? (this.name === "probabilities" ? 0 : -Infinity) : (this.numbers[id] ?? NaN) / this.total;
  }

  // A number for each token; of a cut they are made when they are first read.
  get values(): Float64Array {
    if (!this.cut && this.total === 1) return this.numbers;
    if (this.all) return this.all;
    const all = new Float64Array(this.numbers.length);
    for (let id = 0; id < all.length; id++) all[id] = this.at(id);
    return (this.all = all);
  }

  // The token, by id, in whose span of the probabilities `u` lies.
  draw(u: number): DrawnToken {
    const { numbers, total } = this, ids = this.cut?.ids, n = ids?.length ?? numbers.length;
    let sum = 0, mass = 0;
    for (let i = 0; i < n; i++) sum += (numbers[ids ? (ids[i] ?? 0) : i] ?? 0) / total;
    for (let i = 0; i < n; i++) {
      const id = ids ? (ids[i] ?? 0) : i, before = mass;
      mass += (numbers[id] ?? 0) / total;
      if (mass > u * sum) return { id, u, low: before / sum, high: mass / sum };
    }
    return { id: numbers.length - 1, u, low: 1, high: 1 };
  }
}

const exactly = (n: number): number => n;
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
    if (round === Math.fround) for (let i = 0; i < x.length; i++) x[i] = Math.fround(Math.fround((x[i] ?? 0) - top) / t); // a call of `round` costs as much as the rest
    else for (let i = 0; i < x.length; i++) x[i] = ((x[i] ?? 0) - top) / t;
    return x;
  }],
];

// How many of the ids that are kept each cut keeps.
const CUTS: [Name & keyof Sampling, (setting: number, kept: Kept, round: (n: number) => number) => number][] = [
  ["top_k", (k) => k],
  ["top_p", (p, kept) => {
    const { numbers, order, count } = kept, goal = p * mass(powers(numbers), kept), sums = cumulated(numbers, order);
    return 1 + leading(count, (i) => (sums[i] ?? 0) < goal);
  }],
  ["min_p", (share, { numbers, order, count }, round) => {
    const least = round((numbers[order[0] ?? 0] ?? 0) + Math.log(share));
    return leading(count, (i) => (numbers[order[i] ?? 0] ?? 0) >= least);
  }],
];

export const CUT: ReadonlySet<Name> = new Set<Name>(CUTS.map(([name]) => name));

// Loops, since a slider's frame is 16 ms and a method that calls a function for each of 152,000 numbers takes 3.
function greatest(x: Float64Array): number {
  let most = -Infinity;
  for (let i = 0; i < x.length; i++) if ((x[i] ?? 0) > most) most = x[i] ?? 0;
  return most;
}

function sum(x: Float64Array): number {
  let all = 0;
  for (let i = 0; i < x.length; i++) all += x[i] ?? 0;
  return all;
}

const POWERS = new WeakMap<Float64Array, { values: Float64Array; total: number }>();

// e to what each number is less than the greatest, and the sum of it; of an array that does not change any more, computed once.
export function powers(x: Float64Array): { values: Float64Array; total: number } {
  const known = POWERS.get(x);
  if (known) return known;
  const values = new Float64Array(x.length), top = greatest(x);
  for (let i = 0; i < x.length; i++) if ((x[i] ?? 0) > -Infinity) values[i] = Math.exp((x[i] ?? 0) - top);
  const made = { values, total: sum(values) };
  POWERS.set(x, made);
  return made;
}

// The sum of the powers that a cut keeps, by id.
function mass({ values, total }: { values: Float64Array; total: number }, kept: Kept): number {
  if (kept.count === kept.order.length) return total;
  const { ids } = kept;
  let all = 0;
  for (let i = 0; i < ids.length; i++) all += values[ids[i] ?? 0] ?? 0;
  return all;
}

const CUMULATED = new WeakMap<Float64Array, Float64Array>();

// The powers added up from the likeliest down, so that a cut is a place among these sums; computed once too.
export function cumulated(x: Float64Array, order: Uint32Array): Float64Array {
  const known = CUMULATED.get(x);
  if (known) return known;
  const { values } = powers(x), sums = new Float64Array(order.length);
  let all = 0;
  for (let i = 0; i < sums.length; i++) sums[i] = all += values[order[i] ?? 0] ?? 0;
  CUMULATED.set(x, sums);
  return sums;
}

// Ids from the likeliest down, of equals the lower first, without those of -Infinity. They are sorted by the bits of the nearest float32,
// 11 at a time: 152,000 ids in 5 ms, where a comparing sort takes 100.
export function ranked(x: ArrayLike<number>): Uint32Array {
  const digits = 11, mask = (1 << digits) - 1, n = x.length, float = new Float32Array(1), bits = new Int32Array(float.buffer);
  const keys = new Uint32Array(n), all = new Uint32Array(n); // keys rise as the number falls
  let count = 0;
  for (let id = 0; id < n; id++) {
    if (!((x[id] ?? 0) > -Infinity)) continue;
    float[0] = (x[id] ?? 0) + 0; // -0 is 0
    const b = bits[0] ?? 0;
    keys[id] = b < 0 ? b : ~b & 0x7fffffff;
    all[count++] = id;
  }
  let order = all.subarray(0, count), other = new Uint32Array(count);
  for (let shift = 0; shift < 32; shift += digits) {
    const places = new Uint32Array(mask + 2); // of each digit, where its next id goes
    for (let i = 0; i < count; i++) {
      const digit = ((keys[order[i] ?? 0] ?? 0) >>> shift) & mask;
      places[digit + 1] = (places[digit + 1] ?? 0) + 1;
    }
    for (let i = 1; i < places.length; i++) places[i] = (places[i] ?? 0) + (places[i - 1] ?? 0);
    for (let i = 0; i < count; i++) {
      const id = order[i] ?? 0, digit = ((keys[id] ?? 0) >>> shift) & mask, at = places[digit] ?? 0;
      other[at] = id;
      places[digit] = at + 1;
    }
    [order, other] = [other, order];
  }
  for (let from = 0, to = 1; from < count; from = to++) { // numbers that are one float32 and may differ
    while (to < count && keys[order[to] ?? 0] === keys[order[from] ?? 0]) to++;
    if (to - from > 1) order.subarray(from, to).sort((a, b) => (x[b] ?? 0) - (x[a] ?? 0) || a - b);
  }
  return order;
}

const RANKINGS = new WeakMap<object, Uint32Array>();

// `ranked` of an array that does not change any more: computed once.
export function ranking(x: ArrayLike<number> & object): Uint32Array {
  const order = RANKINGS.get(x) ?? ranked(x);
  RANKINGS.set(x, order);
  return order;
}

// The ids of a stage's numbers before the cuts from the likeliest down. A temperature keeps the order, so it is that of the numbers before it; those that it made equal may stand in any order.
export function descending(all: readonly Stage[]): Uint32Array {
  const at = all.findLastIndex((m) => !CUT.has(m.name) && m.name !== "probabilities"), own = all[at], before = all[at - 1];
  if (!own) return new Uint32Array();
  if (own.name !== "temperature" || !before) return ranking(own.values);
  const order = ranking(before.values);
  let count = order.length;
  while (count > 0 && own.values[order[count - 1] ?? 0] === -Infinity) count--; // too cold for a number
  return order.subarray(0, count);
}

// The last numbers of each change, for the sliders of others.
const LAST = new Map<Name, { from: Float64Array; setting: number; history: History; round: (n: number) => number; made: Float64Array }>();

function changed(name: Name & keyof Sampling, change: Change, from: Float64Array, s: Sampling, history: History, round: (n: number) => number): Float64Array {
  const last = LAST.get(name), setting = s[name];
  if (last && last.from === from && last.setting === setting && last.history === history && last.round === round) return last.made;
  const made = change(from.slice(), s, history, round);
  LAST.set(name, { from, setting, history, round, made });
  return made;
}

// Every stage that the settings switch on, in order. At temperature 0 there are no cuts and no probabilities. wide: logits are float64. Float64 logits are the first stage's own.
export function stages(logits: ArrayLike<number>, s: Sampling, h: History, wide = false): Stage[] {
  const round = wide ? exactly : Math.fround;
  let x: Float64Array = logits instanceof Float64Array ? logits : new Float64Array(logits);
  const out = [new Stage("logits", x)], greedy = s.temperature === 0;
  for (const [name, change] of CHANGES) {
    if (s[name] === OFF[name] || (name === "temperature" && greedy)) continue;
    x = changed(name, change, x, s, h, round);
    out.push(new Stage(name, x));
  }
  if (greedy) return out;
  let kept: Kept | null = null;
  for (const [name, cut] of CUTS) {
    if (s[name] === OFF[name]) continue;
    kept ??= new Kept(x, descending(out), Infinity);
    kept = new Kept(x, kept.order, Math.min(kept.count, cut(s[name], kept, round)));
    out.push(new Stage(name, x, kept));
  }
  return [...out, probabilities(x, kept)];
}

export function probabilities(x: Float64Array, cut: Kept | null = null): Stage {
  const powered = powers(x);
  if (cut) return new Stage("probabilities", powered.values, cut, mass(powered, cut));
  let kept = 0;
  for (let i = 0; i < x.length; i++) if ((x[i] ?? 0) > -Infinity) kept++;
  return new Stage("probabilities", powered.values, null, powered.total, kept);
}

export interface DrawnToken { id: number; u: number | null; low: number; high: number } // the span of [0, 1) that takes this token, by id

// The token that these stages give at a step, with the number that drew it.
export function drawToken(all: readonly Stage[], s: Sampling, step: number): DrawnToken {
  const last = all.at(-1) ?? new Stage("logits", new Float64Array());
  if (s.temperature > 0) return last.draw(uniform(s.seed, step));
  return { id: Math.max(0, last.values.indexOf(greatest(last.values))), u: null, low: 0, high: 1 };
}
