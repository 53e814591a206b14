// A run of a prompt, computed here: every tensor of each step, row by row by the plan, and the documents that the server would write of it.

import { stretch, type Mask } from "../draw/mask";
import type { TokenDocument } from "../run/documents";
import type { Edit } from "../run/edits";
import { axes, type Answer, type Candidate, type Run, type Stats, type Step, type Tensor } from "../run/types";
import { drawToken, GREEDY, probabilities, stages, type Sampling } from "../sampling/stages";
import { decode } from "../tensor/decode";
import type { Stored } from "../tensor/safetensors";
import type { Bpe } from "./bpe";
import type { Plan, RowEdit, Tap } from "./plan";
import type { LiveDocument, StepTensor } from "./present";

const LAST = "last row"; // the op that gives the row a token is drawn from

export interface LiveStep { fed: number[]; past: number; values: Map<string, Float32Array>; errors: Map<string, number>; picked: number; answer: Answer }
export interface Asked { prompt: string | null; ids: number[]; steps: number; sampling: Partial<Sampling>; forced: ReadonlyMap<number, number>; edits?: readonly Edit[] }

export class LiveModel {
  private readonly taps: Map<string, Tap>;
  private readonly decoded = new Map<string, Float32Array>();
  constructor(readonly document: LiveDocument, readonly plan: Plan, readonly bpe: Bpe, readonly weights: ReadonlyMap<string, Stored>) {
    this.taps = new Map(document.plan.taps.map((tap) => [tap.path, tap]));
  }

  // A weight in float32; no numbers where the model has none of this name.
  weight(path: string): Float32Array {
    const known = this.decoded.get(path), stored = this.weights.get(path);
    if (known || !stored) return known ?? new Float32Array();
    const made = Float32Array.from(decode(stored));
    this.decoded.set(path, made);
    return made;
  }

  // The axes of a tensor of one row.
  shape(path: string): readonly number[] {
    return this.taps.get(path)?.shape ?? [];
  }

  // The keys that the query of a position sees in an attention, as a range: the first, and the first after them.
  seen(part: string, position: number): [number, number] {
    const mask = (this.document.run["masks"] as Record<string, Mask>)[part];
    return mask ? stretch(mask, position) : [0, position + 1];
  }

  // The change that an edit makes to row `row` of `rows`; undefined if it leaves that row alone. A RangeError for an edit that is not made here.
  private edit(edit: Edit, row: number, rows: number): RowEdit | undefined {
    const place = this.taps.get(edit.path), names = place ? axes(place) : [], shape = place ? place.shape.map((n, i) => (i === 1 ? rows : n)) : [];
    if (!place || edit.how === "prompt") throw new RangeError(edit.path);
    const spans = spansOf(edit.at, names, shape);
    if (!spans) throw new RangeError(`${edit.path}[${edit.at}]`);
    if (row < (spans[1]?.[0] ?? 0) || row >= (spans[1]?.[1] ?? rows)) return undefined;
    const own = spans.slice(2), sizes = place.shape.slice(2), by = Number(edit.value);
    return { place, change: (x) => x.map((old, n) => {
      let rest = n;
      for (let axis = sizes.length - 1; axis >= 0; axis--) {
        const size = sizes[axis] ?? 1, i = rest % size, [low = 0, high = size] = own[axis] ?? [];
        if (i < low || i >= high) return old;
        rest = Math.floor(rest / size);
      }
      return edit.how === "to" ? by : old * by;
    }) };
  }

  // The tensors of rows `past` and after. before: of the steps until now, which hold the keys.
  rows(fed: readonly number[], past: number, before: readonly LiveStep[], edits: readonly Edit[]): Pick<LiveStep, "values" | "errors"> {
    const rows = new Map<string, Float32Array[]>([...this.taps.keys()].map((path) => [path, []]));
    fed.forEach((token, i) => {
      this.plan.step(token, past + i, past + fed.length, edits.flatMap((e) => this.edit(e, i, fed.length) ?? []));
      for (const [path, tap] of this.taps) rows.get(path)?.push(this.plan.read(tap));
    });
    const values = new Map([...rows].map(([path, all]) => [path, joined(all)])), errors = new Map<string, number>();
    for (const t of this.document.tensors) {
      if (t.op === "scores") this.inside(t, fed.length, past, before, values, errors, edits);
    }
    return { values, errors };
  }

  // Scores and pattern of one attention, which its kernel does not write: from the queries of these rows and all keys, in double.
  private inside(scores: StepTensor, fed: number, past: number, before: readonly LiveStep[], values: Map<string, Float32Array>, errors: Map<string, number>, edits: readonly Edit[]): void {
    const part = scores.path.replace(/\.scores$/, ""), [query = "", key = ""] = scores.inputs, q = values.get(query) ?? new Float32Array();
    const all = (path: string): Float32Array => joined([...before.map((s) => s.values.get(path) ?? new Float32Array()), values.get(path) ?? new Float32Array()]);
    const k = all(key), v = all(`${part}.v`), z = values.get(`${part}.z`) ?? new Float32Array();
    const [, , heads = 1, width = 1] = this.taps.get(query)?.shape ?? [], groups = this.taps.get(key)?.shape[2] ?? 1, out = this.taps.get(`${part}.v`)?.shape[3] ?? 1;
    const keys = past + fed, scale = Number(scores.settings["scale"]);
    const raw = new Float32Array(heads * fed * keys), shares = new Float32Array(raw.length);
    let error = 0;
    for (let h = 0; h < heads; h++)
      for (let t = 0; t < fed; t++) {
        const g = Math.floor(h / (heads / groups)), from = (h * fed + t) * keys, at = (t * heads + h) * width, position = past + t;
        for (let s = 0; s < keys; s++) {
          let sum = 0;
          for (let i = 0; i < width; i++) sum += (q[at + i] ?? 0) * (k[(s * groups + g) * width + i] ?? 0);
          raw[from + s] = sum * scale;
        }
        const [first, after] = this.seen(part, position);
        let top = -Infinity, total = 0;
        for (let s = first; s < after; s++) top = Math.max(top, raw[from + s] ?? 0);
        for (let s = first; s < after; s++) total += Math.exp((raw[from + s] ?? 0) - top);
        for (let s = first; s < after; s++) shares[from + s] = Math.exp((raw[from + s] ?? 0) - top) / total;
        for (let i = 0; i < out; i++) {
          let sum = 0;
          for (let s = first; s < after; s++) sum += (shares[from + s] ?? 0) * (v[(s * groups + g) * out + i] ?? 0);
          error = Math.max(error, Math.abs(sum - (z[(t * heads + h) * out + i] ?? 0)));
        }
      }
    for (const [path, x] of [[scores.path, raw], [`${part}.pattern`, shares]] as const) {
      values.set(path, x);
      if (!edits.some((e) => e.path === `${part}.z`)) errors.set(path, error); // else the kernel's own z is gone
    }
  }

  candidate(id: number, logits: ArrayLike<number>, shares: ArrayLike<number>): Candidate {
    const text = this.bpe.decode([id]);
    return { id, text: this.bpe.bytes(id).length > 0 ? text : null, piece: this.bpe.shown(id), logit: logits[id] ?? null, probability: shares[id] ?? null };
  }

  // What could come next, and what does: as Python's candidates of a step.
  answer(logits: Float32Array, picked: number, count: number): Answer {
    const shares = probabilities(Float64Array.from(logits)).values;
    return { row: -1, picked: this.candidate(picked, logits, shares), candidates: likeliest(logits, count).map((id) => this.candidate(id, logits, shares)) };
  }
}

export class LiveRun {
  private static count = 0; // of the runs of this page
  readonly id = (LiveRun.count++).toString(16).padStart(32, "0");
  readonly steps: LiveStep[] = [];
  readonly new: number[] = [];
  constructor(readonly model: LiveModel, readonly asked: Asked) {
    const { document } = model, settings: Sampling = { ...GREEDY, ...asked.sampling };
    for (let k = 0; k < asked.steps && !document.stops.includes(this.new.at(-1) ?? -1); k++) {
      const fed = k === 0 ? asked.ids : this.new.slice(-1), past = k === 0 ? 0 : asked.ids.length + k - 1;
      const made = model.rows(fed, past, this.steps, asked.edits ?? []), logits = model.plan.logits;
      if (!asked.forced.has(k)) for (const t of document.tensors) if (t.op === LAST) made.values.set(t.path, logits); // a given token is not drawn
      const drawn = asked.forced.get(k) ?? drawToken(stages(logits, settings, { prompt: asked.ids, output: this.new }), settings, k).id;
      this.steps.push({ fed, past, ...made, picked: drawn, answer: model.answer(logits, drawn, document.candidates) });
      this.new.push(drawn);
    }
  }

  // The tensors that a step has, and the number of its first.
  private own(k: number): StepTensor[] {
    return this.model.document.tensors.filter((t) => this.steps[k]?.values.has(t.path));
  }

  private first(k: number): number {
    return Array.from({ length: k }, (_, i) => this.own(i).length).reduce((a, b) => a + b, 0);
  }

  // The tensor of a number, and its step.
  at(n: number): { k: number; step: LiveStep; tensor: StepTensor; values: Float32Array; shape: number[] } {
    const k = this.steps.findLastIndex((_, i) => this.first(i) <= n), step = this.steps[k], tensor = this.own(k)[n - this.first(k)];
    const values = tensor && step?.values.get(tensor.path);
    if (!step || !tensor || !values) throw new RangeError(`no tensor ${n}`);
    return { k, step, tensor, values, shape: shapeOf(tensor, step) };
  }

  tensors(k: number): Tensor[] {
    const step = this.steps[k], first = this.first(k);
    if (!step) return [];
    const edited = new Set((this.asked.edits ?? []).map((e) => e.path));
    return this.own(k).map((t, i) => {
      const values = step.values.get(t.path) ?? new Float32Array(), stats = statsOf(values), rows = step.fed.length, keys = step.past + rows;
      return {
        ...t, ...(edited.has(t.path) ? { source: "edited" as const, terms: false } : {}), n: first + i, shape: shapeOf(t, step), step: k, bytes: values.byteLength, error: step.errors.get(t.path) ?? null, stats,
        flops: t.flops && t.flops[0] + t.flops[1] * rows + t.flops[2] * rows * keys, min: stats.min, mean: stats.mean, max: stats.max,
      };
    });
  }

  document(): Run {
    const { model, asked } = this, { bpe } = model;
    const token = (id: number): TokenDocument => ({ id, text: bpe.decode([id]), bytes: Array.from(bpe.bytes(id), (b) => b.toString(16).padStart(2, "0")).join("") });
    const steps: Step[] = this.steps.map((s, k) => ({ step: k, fed: s.fed, past: s.past, first: this.first(k), count: this.own(k).length, answers: [s.answer], next: s.answer.picked, candidates: s.answer.candidates }));
    return {
      ...model.document.run, schema: 1, run: this.id, model: model.document.model, switches: [], prompt: asked.prompt, ids: asked.ids, pieces: asked.ids.map((id) => bpe.shown(id)), tokens: asked.ids.map(token),
      new: this.new, new_pieces: this.new.map((id) => bpe.shown(id)), ended: model.document.stops.includes(this.new.at(-1) ?? -1), text: bpe.decode(this.new),
      sampling: { ...GREEDY, ...asked.sampling }, forced: Object.fromEntries(asked.forced), edited: (asked.edits ?? []).map((e) => e.path), torn: [], next: steps[0]?.next ?? null, candidates: steps[0]?.candidates ?? [], steps, tensors: this.tensors(0),
    } as unknown as Run;
  }
}

// The span of each axis that an index names, "0,:,2,1:3" or by letters, "H=2, T=-1"; undefined if it does not fit.
function spansOf(at: string, names: readonly string[], shape: readonly number[]): [number, number][] | undefined {
  const words: (string | undefined)[] = names.map(() => ":");
  if (/[A-Z]/.test(at)) for (const part of at.split(", ")) {
    const [letter = "", word = ""] = part.split("="), i = names.indexOf(letter);
    if (i < 0) return undefined;
    words[i] = word;
  } else if (at !== "") {
    const given = at.split(",");
    if (given.length !== names.length) return undefined;
    given.forEach((word, i) => { words[i] = word; });
  }
  const spans = words.map((word = ":", i): [number, number] => {
    const size = shape[i] ?? 1, from = (n: string, otherwise: number): number => (n === "" ? otherwise : Number(n) < 0 ? size + Number(n) : Number(n)), [low = "", high] = word.split(":");
    return high === undefined ? [from(low, NaN), from(low, NaN) + 1] : [from(low, 0), from(high, size)];
  });
  return spans.every(([low, high], i) => low >= 0 && low < high && high <= (shape[i] ?? 1)) ? spans : undefined;
}

const shapeOf = (t: StepTensor, step: LiveStep): number[] => t.shape.map((n) => (n === "T" ? step.fed.length : n === "S" ? step.past + step.fed.length : n));

export function joined(parts: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((n, p) => n + p.length, 0));
  parts.reduce((at, part) => { all.set(part, at); return at + part.length; }, 0);
  return all;
}

// The ids of the `count` largest numbers, of equal ones the lower first; sorting all of a vocabulary took most of a token's time.
export function likeliest(x: ArrayLike<number>, count: number): number[] {
  const best: number[] = [];
  for (let id = 0; id < x.length; id++) {
    const n = x[id] ?? -Infinity;
    if (!(n > -Infinity) || (best.length === count && n <= (x[best.at(-1) ?? 0] ?? 0))) continue;
    let i = best.length;
    while (i > 0 && (x[best[i - 1] ?? 0] ?? 0) < n) i--;
    best.splice(i, 0, id);
    if (best.length > count) best.pop();
  }
  return best;
}

// Of the finite values, in double.
export function statsOf(x: ArrayLike<number>): Stats {
  let min = Infinity, max = -Infinity, sum = 0, square = 0, count = 0, nan = 0, inf = 0;
  for (let i = 0; i < x.length; i++) {
    const n = x[i] ?? NaN;
    if (Number.isNaN(n)) { nan++; continue; }
    if (!Number.isFinite(n)) { inf++; continue; }
    min = Math.min(min, n), max = Math.max(max, n), sum += n, count++;
  }
  const mean = sum / count;
  for (let i = 0; i < x.length; i++) if (Number.isFinite(x[i] ?? NaN)) square += ((x[i] ?? 0) - mean) ** 2;
  if (count === 0) return { min: null, max: null, mean: null, std: null, absmax: null, nan, inf };
  return { min, max, mean, std: Math.sqrt(square / count), absmax: Math.max(-min, max), nan, inf };
}
