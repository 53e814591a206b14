// The inside of one attention in one step, which its kernel does not write: queries, keys and values as tables, scores and shares in double.

import { stretch } from "../draw/mask";
import type { LiveModel, LiveStep } from "./live_run";
import type { StepTensor } from "./present";

export interface Table { x: Float32Array; heads: number; width: number }

export class Attended {
  readonly part: string;
  readonly keys: number; // their count
  readonly shares: number; // heads of queries that one head of keys serves
  readonly scale: number;
  private readonly q: Table;
  private readonly k: Table;
  private readonly v: Table;
  private readonly bias: ((h: number, back: number) => number) | undefined;

  // scores: the document of its scores.  before: the steps until this one, which hold the keys.  prompt: the length of the run's prompt.
  constructor(readonly model: LiveModel, scores: StepTensor, readonly step: LiveStep, before: readonly LiveStep[], private readonly prompt: number) {
    const part = scores.path.replace(/\.scores$/, ""), half = scores.inputs.length / 2, all = [...before, step];
    const own = (path: string): Table => this.table(path, model.stored(path, all));
    const queries = scores.inputs.slice(0, half).map((path) => this.table(path, step.values.get(path) ?? new Float32Array())), keys = scores.inputs.slice(half).map(own);
    this.part = part;
    this.k = sideBySide(keys, keys[0]?.heads ?? 1);
    this.q = sideBySide(half > 1 ? [narrowed(queries[0] as Table, keys[0]?.width ?? 1), ...queries.slice(1)] : queries, queries[0]?.heads ?? 1);
    this.v = own(model.valuesOf(part));
    this.keys = this.k.x.length / (this.k.heads * this.k.width);
    this.shares = this.q.heads / this.k.heads;
    this.scale = Number(scores.settings["scale"]);
    const bucket = scores.weights.length > 0 ? model.plan.bucket(`${part}.z`) : undefined, learned = model.weight(scores.weights[0] ?? "");
    if (bucket) this.bias = (h, back) => learned[bucket(back) * this.q.heads + h] ?? NaN;
  }

  get heads(): number { return this.q.heads; }
  get rows(): number { return this.q.x.length / (this.q.heads * this.q.width); }
  get width(): number { return this.v.width; }

  private table(path: string, x: Float32Array): Table {
    const shape = this.model.sizes(path);
    return shape.length === 4 ? { x, heads: shape[2] ?? 1, width: shape[3] ?? 1 } : { x, heads: 1, width: shape[2] ?? 1 };
  }

  query(h: number, t: number): Float32Array { return vector(this.q, t, h); }
  key(h: number, s: number): Float32Array { return vector(this.k, s, Math.floor(h / this.shares)); }
  value(h: number, s: number): Float32Array { return vector(this.v, s, Math.floor(h / this.shares)); }

  // What a score has added by distance alone; undefined where nothing is.
  added(h: number, t: number, s: number): number | undefined { return this.bias?.(h, this.step.past + t - s); }

  raw(h: number, t: number, s: number): number {
    const q = this.query(h, t), k = this.key(h, s);
    let sum = 0;
    for (let i = 0; i < q.length; i++) sum += (q[i] ?? 0) * (k[i] ?? 0);
    return sum * this.scale + (this.added(h, t, s) ?? 0);
  }

  // The keys that a query sees, as a range: the first, and the first after them.
  seen(t: number): [number, number] {
    const mask = this.model.mask(this.part, this.prompt), position = this.step.past + t, [first, after] = mask ? stretch(mask, position) : [0, position + 1];
    return [first, Math.min(after, this.keys)];
  }

  // e^(score - top) of each key under the mask; 0 for those that are hidden.
  softened(row: ArrayLike<number>, t: number): { e: number[]; top: number; sum: number } {
    const [first, after] = this.seen(t);
    let top = -Infinity;
    for (let s = first; s < after; s++) top = Math.max(top, row[s] ?? NaN);
    const e = Array.from({ length: this.keys }, (_, s) => (s < first || s >= after ? 0 : Math.exp((row[s] ?? NaN) - top)));
    return { e, top, sum: e.reduce((a, b) => a + b, 0) };
  }
}

const vector = ({ x, heads, width }: Table, row: number, head: number): Float32Array => x.subarray((row * heads + head) * width, (row * heads + head + 1) * width);

// The first `width` numbers of each head.
function narrowed(t: Table, width: number): Table {
  return { ...t, width, x: Float32Array.from({ length: (t.x.length / t.width) * width }, (_, i) => t.x[Math.floor(i / width) * t.width + (i % width)] ?? NaN) };
}

// Tables side by side: a head's numbers of the first, then of the next, which may have one head for all.
function sideBySide(tables: readonly Table[], heads: number): Table {
  if (tables.length === 1) return tables[0] as Table;
  const width = tables.reduce((n, t) => n + t.width, 0), first = tables[0] as Table, rows = first.x.length / (first.heads * first.width), x = new Float32Array(rows * heads * width);
  for (let row = 0; row < rows; row++) for (let h = 0; h < heads; h++) {
    let at = (row * heads + h) * width;
    for (const t of tables) {
      x.set(vector(t, row, t.heads === 1 ? 0 : h), at);
      at += t.width;
    }
  }
  return { x, heads, width };
}
