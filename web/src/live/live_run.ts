// A run of a prompt, computed here: every tensor of each step, row by row by the plan, and the documents that the server would write of it.

import type { Mask } from "../draw/mask";
import type { TokenDocument } from "../run/documents";
import { numberOf, type Edit } from "../run/edits";
import { axes, type Answer, type Candidate, type Run, type Stats, type Step, type Tensor } from "../run/types";
import { drawToken, GREEDY, probabilities, stages, type Sampling } from "../sampling/stages";
import { Attended } from "./attended";
import type { Plan, Row, RowEdit, Tap } from "./plan";
import type { LiveDocument, StepTensor } from "./present";
import { idsOf } from "./text_ids";
import type { Tokenizer } from "./tokenizer";
import { Weights } from "./weights";

const LAST = "last row"; // the op that gives the row a token is drawn from

// source: rows of the encoder beside a decoder, in the first step.  sent: by part, the rows that went to experts, in the experts' order.
export interface LiveStep { fed: number[]; past: number; source: number; values: Map<string, Float32Array>; errors: Map<string, number>; sent: Map<string, Sent[]>; picked: number; answers: Answer[] }
// A row of a tensor [N ...]: its token, its expert, and which of the token's choices it is.
export interface Sent { token: number; expert: number; choice: number }
export interface Asked { prompt: string | null; ids: number[]; steps: number; sampling: Partial<Sampling>; forced: ReadonlyMap<number, number>; edits?: readonly Edit[] }
// An edited run whose answer is no number. path, at: the first NaN; "" where every logit is infinite.
export class NoNumber extends Error {
  constructor(readonly path: string, readonly at: string, readonly step: number) { super(path); }
}
type Made = Pick<LiveStep, "values" | "errors" | "sent" | "source">;

const none = new Float32Array();

export class LiveModel {
  private readonly taps: Map<string, Tap>;
  private readonly known: Map<string, StepTensor>;
  private readonly ofSource: Set<string>; // tensors that have a row for each token of the source
  readonly weights: Weights;
  constructor(readonly document: LiveDocument, readonly plan: Plan, readonly tokenizer: Tokenizer) {
    this.taps = new Map(document.plan.taps.map((tap) => [tap.path, tap]));
    this.known = new Map(document.tensors.map((t) => [t.path, t]));
    this.ofSource = new Set(document.tensors.filter(({ path, dims }) => path === "source" || path.startsWith("encoder.") || (path.includes(".cross.") && dims.startsWith("B S"))).map((t) => t.path));
    this.weights = new Weights(plan, document.memory.weights);
  }

  get kind(): string { return String(this.document.run["kind"]); }
  ids(text: string): number[] { return idsOf(text, this.tokenizer, this.document); }
  tensor(path: string): StepTensor | undefined { return this.known.get(path); }

  // The rows of a tensor of a step: of the encoder beside a decoder, or of the step.
  rowsOf(step: { fed: readonly number[]; source: number }, path: string): number { return this.ofSource.has(path) ? step.source : step.fed.length; }

  // A weight in float32; no numbers where the model has none of this name.
  weight(path: string): Float32Array {
    return this.weights.matrix(path);
  }

  // The axes of a tensor of one row.
  sizes(path: string): readonly number[] {
    return this.taps.get(path)?.shape ?? this.known.get(path)?.shape.map((n) => (typeof n === "number" ? n : 1)) ?? [];
  }

  mask(part: string, prompt: number): Mask | undefined {
    const mask = (this.document.run["masks"] as Record<string, Mask | undefined>)[part];
    return mask && { ...mask, until: Number.isInteger(mask.until) ? mask.until : prompt };
  }

  // The values of an attention.
  valuesOf(part: string): string {
    const z = this.known.get(`${part}.z`);
    return z?.op === "attend" ? (z.inputs[2] ?? "") : `${part}.v`;
  }

  // True for keys and values that a latent is multiplied to, for all its rows in each step.
  grown(t: StepTensor): boolean { return t.op === "linear" && !this.taps.has(t.path); }

  // All rows of a tensor that the cache keeps, up to the last of these steps.
  stored(path: string, steps: readonly LiveStep[]): Float32Array {
    const own = this.known.get(path);
    return own && this.grown(own) ? (steps.at(-1)?.values.get(path) ?? none) : joined(steps.map((s) => s.values.get(path) ?? none));
  }

  attended(scores: StepTensor, step: LiveStep, before: readonly LiveStep[], prompt: number): Attended {
    return new Attended(this, scores, step, before, prompt);
  }

  // The change that an edit makes to row `row` of `rows`; undefined if it leaves that row alone. A RangeError for an edit that is not made here.
  private edit(edit: Edit, row: number, step: { fed: readonly number[]; source: number }): RowEdit | undefined {
    const place = this.taps.get(edit.path), rows = this.rowsOf(step, edit.path), names = place ? axes(place) : [];
    const shape = place ? place.shape.map((n, i) => (i === 1 ? rows : n)) : [];
    if (!place || place.dtype !== "float32" || names[0] !== "B" || (edit.how !== "to" && edit.how !== "times")) throw new RangeError(edit.path);
    if (rows === 0) return undefined; // of a source, which the first step read
    const spans = spansOf(edit.at, names, shape);
    if (!spans) throw new RangeError(`${edit.path}[${edit.at}]`);
    if (row < (spans[1]?.[0] ?? 0) || row >= (spans[1]?.[1] ?? rows)) return undefined;
    const own = spans.slice(2), sizes = place.shape.slice(2), by = numberOf(edit);
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

  // The tensors of rows `past` and after. before: of the steps until now, which hold the keys.  prompt: the ids of the run's prompt.
  rows(fed: readonly number[], past: number, before: readonly LiveStep[], prompt: readonly number[], edits: readonly Edit[]): Made {
    const { plan, document } = this, first = before.length === 0, source = first && document.plan.source.length > 0 ? prompt.length : 0;
    const rows = new Map<string, Float32Array[]>([...this.taps.keys()].map((path) => [path, []])), of = { fed, source };
    const made = (ids: readonly number[], from: number): Row[] => ids.map((token, i) => ({ token, position: from + i, length: from + ids.length, edits: edits.flatMap((e) => this.edit(e, i, of) ?? []) }));
    const seen = (taps: readonly Tap[]) => (_: number, read: (place: Tap) => Float32Array): void => {
      for (const tap of taps) rows.get(tap.path)?.push(read(tap));
    };
    const all = [...this.taps.values()], text = all.filter((tap) => !this.ofSource.has(tap.path));
    if (source > 0) plan.runTogether("source", made(prompt, 0), seen(all.filter((tap) => this.ofSource.has(tap.path))));
    if (document.plan.together && first) plan.runTogether("calls", made(fed, past), seen(text));
    else plan.run(made(fed, past), seen(text));
    const step: LiveStep = { fed: [...fed], past, source, values: new Map([...rows].flatMap(([path, own]) => (own.length > 0 ? [[path, joined(own)] as const] : []))), errors: new Map(), sent: new Map(), picked: 0, answers: [] };
    this.send(step, rows);
    for (const t of document.tensors) {
      if (this.grown(t) && step.values.has(t.inputs[0] ?? "")) step.values.set(t.path, this.grow(t, [...before, step]));
      if (t.op === "scores" && step.values.has(t.inputs[0] ?? "")) this.inside(t, step, before, prompt.length, edits);
    }
    return step;
  }

  // Put the rows that went to experts into the experts' order, as one call for all tokens has them.
  private send(step: LiveStep, rows: ReadonlyMap<string, readonly Float32Array[]>): void {
    for (const [path, tap] of this.taps) {
      if (!tap.dims.startsWith("N")) continue;
      const part = path.replace(/\.[^.]+$/, ""), chosen = step.values.get(`${part}.chosen`) ?? none, count = tap.shape[0] ?? 1, each = rows.get(path) ?? [];
      const sent = step.sent.get(part) ?? Array.from(chosen, (expert, i): Sent => ({ token: Math.floor(i / count), expert, choice: i % count })).sort((a, b) => a.expert - b.expert || a.token - b.token);
      step.sent.set(part, sent);
      const met = new Map<number, number>(); // of each token, how many of its rows were put
      step.values.set(path, joined(sent.map(({ token }) => {
        const i = met.get(token) ?? 0, own = each[token] ?? none, width = own.length / count;
        met.set(token, i + 1);
        return own.subarray(i * width, (i + 1) * width);
      })));
    }
  }

  // The rows of a latent's matrix that make a head's keys, or behind them its values.
  grownFrom(t: StepTensor): { width: number; at: (h: number, i: number) => Float32Array } {
    const [, , heads = 1, own = 1] = this.sizes(t.path), w = this.weight(t.weights[0] ?? ""), width = this.sizes(t.inputs[0] ?? "").at(-1) ?? 1;
    const each = w.length / (heads * width), from = t.path.endsWith(".v") ? each - own : 0;
    return { width, at: (h, i) => w.subarray((h * each + from + i) * width, (h * each + from + i + 1) * width) };
  }

  private grow(t: StepTensor, steps: readonly LiveStep[]): Float32Array {
    const latent = this.stored(t.inputs[0] ?? "", steps), [, , heads = 1, own = 1] = this.sizes(t.path), { width, at } = this.grownFrom(t), out = new Float32Array((latent.length / width) * heads * own);
    for (let h = 0; h < heads; h++)
      for (let i = 0; i < own; i++) {
        const w = at(h, i);
        for (let s = 0; s * width < latent.length; s++) {
          let sum = 0;
          for (let c = 0; c < width; c++) sum += (latent[s * width + c] ?? 0) * (w[c] ?? 0);
          out[(s * heads + h) * own + i] = sum;
        }
      }
    return out;
  }

  // Scores and pattern of one attention, which its kernel does not write: from the queries of these rows and all keys, in double.
  private inside(scores: StepTensor, step: LiveStep, before: readonly LiveStep[], prompt: number, edits: readonly Edit[]): void {
    const a = this.attended(scores, step, before, prompt), { part, keys, heads, rows, width, scale } = a, z = step.values.get(`${part}.z`) ?? none;
    const raw = new Float32Array(heads * rows * keys), shares = new Float32Array(raw.length);
    let error = 0;
    for (let h = 0; h < heads; h++)
      for (let t = 0; t < rows; t++) {
        const from = (h * rows + t) * keys, q = a.query(h, t), row = raw.subarray(from, from + keys), sums = new Float64Array(width);
        for (let s = 0; s < keys; s++) {
          const k = a.key(h, s);
          let sum = 0;
          for (let i = 0; i < q.length; i++) sum += (q[i] ?? 0) * (k[i] ?? 0);
          row[s] = sum * scale + (a.added(h, t, s) ?? 0);
        }
        const { e, sum } = a.softened(row, t), [first, after] = a.seen(t);
        for (let s = first; s < after; s++) {
          const share = (shares[from + s] = (e[s] ?? 0) / sum), v = a.value(h, s);
          for (let i = 0; i < width; i++) sums[i] = (sums[i] ?? 0) + share * (v[i] ?? 0);
        }
        sums.forEach((x, i) => { error = Math.max(error, Math.abs(x - (z[(t * heads + h) * width + i] ?? 0))); });
      }
    step.values.set(scores.path, raw);
    step.values.set(`${part}.pattern`, shares);
    if (edits.some((e) => e.path === `${part}.z`)) return; // the kernel's own z is gone
    for (const path of [scores.path, `${part}.pattern`, `${part}.k`, `${part}.v`]) if (!this.taps.has(path)) step.errors.set(path, error);
  }

  candidate(id: number, logits: ArrayLike<number>, shares: ArrayLike<number>): Candidate {
    const text = this.tokenizer.decode([id]);
    return { id, text: this.tokenizer.bytes(id).length > 0 ? text : null, piece: this.tokenizer.shown(id), logit: logits[id] ?? null, probability: shares[id] ?? null };
  }

  // What could come next, and what does: as Python's candidates of a step.
  answer(logits: Float32Array, picked: number, row = -1): Answer {
    const shares = probabilities(Float64Array.from(logits)).values, count = this.document.candidates;
    return { row, picked: this.candidate(picked, logits, shares), candidates: likeliest(logits, count).map((id) => this.candidate(id, logits, shares)) };
  }
}

export class LiveRun {
  private static count = 0; // of the runs of this page
  readonly id = (LiveRun.count++).toString(16).padStart(32, "0");
  readonly steps: LiveStep[] = [];
  readonly new: number[] = [];
  readonly read: readonly number[]; // the ids that its first step's rows stand for
  readonly blanks: number[] = []; // rows of an encoder's text that it fills
  constructor(readonly model: LiveModel, readonly asked: Asked) {
    const { document } = model;
    this.read = document.starts === null ? asked.ids : [document.starts];
    if (model.kind === "encoder") this.fill();
    else this.write();
  }

  // Choose one token after another.
  private write(): void {
    const { model, asked } = this, { document } = model, settings: Sampling = { ...GREEDY, ...asked.sampling };
    for (let k = 0; k < asked.steps && !document.stops.includes(this.new.at(-1) ?? -1); k++) {
      const length = this.read.length + k, whole = k === 0 || document.restarts.some((n) => this.read.length <= n && length === n + 1);
      const fed = whole ? [...this.read, ...this.new] : this.new.slice(-1), past = length - fed.length;
      const made = model.rows(fed, past, whole ? [] : this.since(k), asked.ids, asked.edits ?? []), logits = lastRow(made.values.get("logits") ?? none, fed.length);
      this.requireNumbers(logits, { ...made, fed, past, picked: 0, answers: [] }, k);
      if (!asked.forced.has(k)) for (const t of document.tensors) if (t.op === LAST) made.values.set(t.path, logits); // a given token is not drawn
      const drawn = asked.forced.get(k) ?? drawToken(stages(logits, settings, { prompt: [...this.read], output: this.new }), settings, k).id;
      this.steps.push({ ...made, fed, past, picked: drawn, answers: [model.answer(logits, drawn)] });
      this.new.push(drawn);
    }
  }

  // Fill the blanks of an encoder's text, all in one step.
  private fill(): void {
    const { model, asked } = this, fed = [...asked.ids], made = model.rows(fed, 0, [], fed, asked.edits ?? []), all = made.values.get("logits") ?? none, width = all.length / fed.length;
    fed.forEach((id, row) => { if (id === model.document.control?.mask) this.blanks.push(row); });
    const answers = this.blanks.map((row) => {
      const logits = all.subarray(row * width, (row + 1) * width), [best = 0] = likeliest(logits, 1);
      this.requireNumbers(logits, { ...made, fed, past: 0, picked: 0, answers: [] }, 0);
      this.new.push(best);
      return model.answer(logits, best, row);
    });
    this.steps.push({ ...made, fed, past: 0, picked: this.new[0] ?? 0, answers });
  }

  // Throw a NoNumber for edits that leave the answer of step `k` no number.
  private requireNumbers(logits: Float32Array, step: LiveStep, k: number): void {
    if ((this.asked.edits ?? []).length === 0 || Number.isFinite(logits.reduce((a, b) => Math.max(a, b), -Infinity))) return;
    for (const t of this.model.document.tensors) {
      let n = (step.values.get(t.path) ?? none).findIndex(Number.isNaN);
      if (n < 0) continue;
      const at = this.shapeOf(t, step).reduceRight<number[]>((all, size) => { const i = n % size; n = (n - i) / size; return [i, ...all]; }, []);
      throw new NoNumber(t.path, `[${at.join(", ")}]`, k);
    }
    throw new NoNumber("", "", k);
  }

  // The steps before step `k` whose rows it reads: those since its text was read from the first token.
  private since(k: number): LiveStep[] {
    return this.steps.slice(Math.max(0, this.steps.slice(0, k).findLastIndex((s) => s.past === 0)), k);
  }

  // All rows of a tensor that the cache keeps, up to the last of a step.
  stored(path: string, step: LiveStep): Float32Array {
    return this.model.stored(path, this.since(this.steps.indexOf(step) + 1));
  }

  // The attention that a tensor of its inside or its output belongs to, in a step.
  attended(step: LiveStep, part: string): Attended | undefined {
    const scores = this.model.tensor(`${part}.scores`);
    return scores && this.model.attended(scores, step, step.past === 0 ? [] : this.since(this.steps.indexOf(step)), this.asked.ids.length);
  }

  get bytes(): number {
    return this.steps.reduce((n, s) => n + [...s.values.values()].reduce((m, x) => m + x.byteLength, 0), 0);
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
    return { k, step, tensor, values, shape: this.shapeOf(tensor, step) };
  }

  tensors(k: number): Tensor[] {
    const step = this.steps[k], first = this.first(k);
    if (!step) return [];
    const edited = new Set((this.asked.edits ?? []).map((e) => e.path));
    return this.own(k).map((t, i) => {
      const values = step.values.get(t.path) ?? none, stats = statsOf(values), [rows, keys] = this.extent(t.path, step), part = t.path.replace(/\.[^.]+$/, "");
      const begin = k === 0 ? (JSON.parse(JSON.stringify(t.first).replaceAll("{prompt}", String(this.asked.ids.length))) as Partial<Tensor>) : {};
      return {
        ...withoutFirst(t), ...begin, rows: t.dims.startsWith("N") ? (step.sent.get(part) ?? []).map(({ token }) => token) : null, ...(edited.has(t.path) ? { source: "edited" as const, terms: false } : {}), n: first + i, shape: this.shapeOf(t, step), step: k, bytes: (t.dtype === "int64" ? 8 : 4) * values.length, error: step.errors.get(t.path) ?? null, stats,
        flops: t.flops && t.flops[0] * rows + t.flops[1] * rows * keys, min: stats.min, mean: stats.mean, max: stats.max,
      };
    });
  }

  // T and S of a tensor in a step.
  private extent(path: string, step: LiveStep): [number, number] {
    const rows = this.model.rowsOf(step, path), { ids } = this.asked;
    return path.includes(".cross.") ? [step.fed.length, ids.length] : [rows, path.startsWith("encoder.") || path === "source" ? rows : step.past + step.fed.length];
  }

  private shapeOf(t: StepTensor, step: LiveStep): number[] {
    const [rows, keys] = this.extent(t.path, step), part = t.path.replace(/\.[^.]+$/, "");
    return t.shape.map((n) => (n === "T" ? rows : n === "S" ? keys : n === "N" ? (step.sent.get(part) ?? []).length : n));
  }

  document(): Run {
    const { model, asked } = this, { tokenizer } = model;
    const token = (id: number): TokenDocument => ({ id, text: tokenizer.decode([id]), bytes: Array.from(tokenizer.bytes(id), (b) => b.toString(16).padStart(2, "0")).join("") });
    const steps: Step[] = this.steps.map((s, k) => ({ step: k, fed: s.fed, past: s.past, first: this.first(k), count: this.own(k).length, answers: s.answers, next: s.answers[0]?.picked ?? null, candidates: s.answers[0]?.candidates ?? [] }));
    const masks = Object.fromEntries(Object.keys(model.document.run["masks"] as object).map((part) => [part, model.mask(part, asked.ids.length)])), encoder = model.kind === "encoder", { seed: _, ...plain } = GREEDY;
    return {
      ...model.document.run, masks, schema: 1, run: this.id, model: model.document.model, switches: [], prompt: asked.prompt, ids: asked.ids, pieces: asked.ids.map((id) => tokenizer.shown(id)), tokens: asked.ids.map(token),
      new: this.new, new_pieces: this.new.map((id) => tokenizer.shown(id)), ended: !encoder && model.document.stops.includes(this.new.at(-1) ?? -1), text: tokenizer.decode(this.new),
      sampling: !encoder ? { ...GREEDY, ...asked.sampling } : this.new.length > 0 ? plain : {}, forced: Object.fromEntries(asked.forced), edited: (asked.edits ?? []).map((e) => e.path), torn: [], next: steps[0]?.next ?? null, candidates: steps[0]?.candidates ?? [], steps, tensors: this.tensors(0),
      ...(encoder && steps[0]?.answers.length ? { blanks: steps[0].answers.map((a) => ({ row: a.row, next: a.picked, candidates: a.candidates })) } : {}),
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

function withoutFirst({ first: _, ...t }: StepTensor): Omit<StepTensor, "first"> {
  return t;
}

const lastRow = (x: Float32Array, rows: number): Float32Array => x.subarray(x.length - x.length / rows);

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
