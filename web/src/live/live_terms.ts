// What a cell's number is made of: its factors by name, what is added, and the sum, in double, as the ops of src/pellucid/ops tell it.

import { frequency } from "../run/turning";
import type { Terms } from "../run/types";
import { act } from "../sums/acts";
import { soft, summed, type Made } from "../sums/made";
import type { LiveRun, LiveStep, Sent } from "./live_run";
import type { StepTensor } from "./present";

type Columns = Made["factors"];

// A cell of a tensor in one step, and what it was made from.
class Cell {
  constructor(readonly run: LiveRun, readonly step: LiveStep, readonly tensor: StepTensor, readonly shape: readonly number[], readonly at: readonly number[]) {}

  private get lead(): number { return this.tensor.dims.startsWith("N") ? 1 : 2; } // the axes before a row's own
  get row(): number { return this.at[this.lead - 1] ?? 0; } // of tensors [B T ...] and [N ...]
  get position(): number { return this.step.past + this.row; }
  get part(): string { return this.tensor.path.replace(/\.[^.]+$/, ""); }

  // Where the cell lies within its row.
  get offset(): number { return this.at.slice(this.lead).reduce((n, i, axis) => n * (this.shape[axis + this.lead] ?? 1) + i, 0); }

  input(i: number): Float32Array { return this.step.values.get(this.tensor.inputs[i] ?? "") ?? new Float32Array(); }
  weight(i: number): Float32Array { return this.run.model.weight(this.tensor.weights[i] ?? ""); }

  // The row that a row [N ...] is, and those of a token.
  get sent(): readonly Sent[] { return this.step.sent.get(this.part) ?? this.step.sent.get(this.tensor.path.replace(/\.routed_out$/, "")) ?? []; }

  weightRow(i: number, row: number): Float32Array { return this.run.model.weights.row(this.tensor.weights[i] ?? "", row); }

  // The numbers of a row of an input of the step.
  rowOf(i: number, row = this.row): number[] {
    const path = this.tensor.inputs[i] ?? "", own = this.run.model.tensor(path), x = own && this.run.model.grown(this.tensor) ? this.run.stored(path, this.step) : this.input(i);
    const rows = own?.dims.startsWith("N") ? this.sent.length : own && this.run.model.grown(this.tensor) ? (this.shape[1] ?? 1) : this.run.model.rowsOf(this.step, path), width = x.length / rows;
    return [...x.subarray(row * width, (row + 1) * width)];
  }

  // The last axis of an input around the cell: of "K+R" the part that the tensor was made of, the last or the first.
  around(i: number): { row: number[]; last: number } {
    const path = this.tensor.inputs[i] ?? "", own = this.run.model.tensor(path), last = this.at.at(-1) ?? 0, n = this.shape.at(-1) ?? 1, width = Number(own?.shape.at(-1) ?? n);
    const head = Math.floor(this.offset / n), behind = own?.dims.split(/[ +]/).at(-1) === this.tensor.dims.split(/[ +]/).at(-1) ? width - n : 0;
    return { row: this.rowOf(i).slice(head * width + behind, head * width + behind + n), last };
  }
}

// By op. A term that is undefined is left out.
const OPS: Record<string, (c: Cell) => Made> = {
  linear: (c) => {
    const x = c.rowOf(0);
    if (c.run.model.grown(c.tensor)) return { factors: { x, weight: [...c.run.model.grownFrom(c.tensor).at(c.at[2] ?? 0, c.at[3] ?? 0)] } };
    const bias = c.tensor.weights.length > 1 ? c.weight(1)[c.offset] : undefined;
    return { factors: { x, weight: [...c.weightRow(0, c.offset)] }, ...(bias === undefined ? {} : { added: { bias } }) };
  },
  look: (c) => {
    const { path } = c.tensor, ids = path === "source" ? c.run.asked.ids : c.step.fed;
    const id = (path.endsWith("positions") ? c.position : path.endsWith("types") ? 0 : (ids[c.row] ?? 0)) + Number(c.tensor.settings["skip"] ?? 0);
    return { factors: { weight: [c.weightRow(0, id)[c.offset] ?? NaN] } };
  },
  add: (c) => ({ factors: {}, added: { x: c.rowOf(0)[c.offset] ?? NaN, y: c.rowOf(1)[c.offset] ?? NaN } }),
  correct: (c) => ({ factors: {}, added: { x: c.rowOf(0)[c.offset] ?? NaN, weight: c.weight(0)[c.offset] ?? NaN } }),
  sigmoid: (c) => {
    const x = c.rowOf(0)[c.offset] ?? NaN;
    return { factors: { sigmoid: [1 / (1 + Math.exp(-x))] }, about: { x } };
  },
  top: (c) => {
    const expert = c.step.values.get(c.tensor.path)?.[c.row * (c.shape.at(-1) ?? 1) + c.offset] ?? NaN;
    return { factors: { expert: [expert] }, about: { score: c.rowOf(0)[expert] ?? NaN } };
  },
  share: (c) => {
    const { normalised, scale, least } = c.tensor.settings, own = c.rowOf(0), chosen = c.rowOf(1), sum = chosen.reduce((n, e) => n + (own[e] ?? NaN), 0) + Number(least ?? 0);
    return { factors: { x: [own[chosen[c.offset] ?? -1] ?? NaN], ...(normalised ? { over: [1 / sum] } : {}), ...(scale === 1 ? {} : { scale: [Number(scale)] }) }, about: { sum } };
  },
  pick: (c) => ({ factors: { x: [c.rowOf(0, c.sent[c.row]?.token)[c.offset] ?? NaN] } }),
  experts: (c) => {
    const x = c.rowOf(0), expert = c.sent[c.row]?.expert ?? 0, from = c.offset * x.length;
    return { factors: { x, weight: [...c.weightRow(0, expert).subarray(from, from + x.length)] }, about: { expert } };
  },
  combine: (c) => {
    const own = c.sent.flatMap(({ token, choice }, i) => (token === c.row ? [{ i, choice }] : [])), shares = c.rowOf(1);
    return { factors: { x: own.map(({ i }) => c.rowOf(0, i)[c.offset] ?? NaN), share: own.map(({ choice }) => shares[choice] ?? NaN) } };
  },
  scores: (c) => {
    const [, h = 0, t = 0, s = 0] = c.at, a = c.run.attended(c.step, c.part);
    if (!a) return { factors: {} };
    const q = [...a.query(h, t)], distance = a.added(h, t, s);
    return { factors: { q, k: [...a.key(h, s)], ...(a.scale === 1 ? {} : { scale: q.map(() => a.scale) }) }, ...(distance === undefined ? {} : { added: { distance } }) };
  },
  softmax: (c) => {
    const [, h = 0, t = 0, s = 0] = c.at, a = c.run.attended(c.step, c.part);
    if (!a) return soft(c.rowOf(0), c.offset);
    const from = (h * a.rows + t) * a.keys, row = c.input(0).subarray(from, from + a.keys), { e, top, sum } = a.softened(row, t), [first, after] = a.seen(t);
    return { factors: { e: [e[s] ?? NaN], over: [1 / sum] }, about: { x: s < first || s >= after ? -Infinity : (row[s] ?? NaN), top, sum } };
  },
  attend: (c) => mixed(c),
  "attend latent": (c) => mixed(c),
  "layer norm": (c) => {
    const { x, row, gain } = normed(c), mean = row.reduce((a, b) => a + b, 0) / row.length;
    const deviation = Math.sqrt(row.reduce((n, v) => n + (v - mean) ** 2, 0) / row.length + Number(c.tensor.settings["eps"])), bias = c.weight(1)[c.at.at(-1) ?? 0];
    return { factors: { centred: [x - mean], over: [1 / deviation], ...gain }, ...(bias === undefined ? {} : { added: { bias } }), about: { x, mean, deviation } };
  },
  rms: (c) => {
    const { x, row, gain } = normed(c), rms = Math.sqrt(row.reduce((n, v) => n + v * v, 0) / row.length + Number(c.tensor.settings["eps"]));
    return { factors: { x: [x], over: [1 / rms], ...gain }, about: { rms } };
  },
  act: (c) => gated(c),
  gate: (c) => gated(c),
  rotate: (c) => {
    const { settings, path } = c.tensor, half = Number(settings["width"]) / 2, { row: x, last } = c.around(0), { frequencies, amount } = c.run.model.plan.turn(path) ?? {};
    if (last >= 2 * half) return { factors: { x: [x[last] ?? NaN], turn: [1] } };
    const adjacent = settings["pairs"] === "adjacent", [j, later] = adjacent ? [Math.floor(last / 2), last % 2] : [last % half, Math.floor(last / half)];
    const angle = c.position * (frequencies?.[j] ?? frequency(settings, j, c.step.past + c.step.fed.length)), [cos, sin] = [Math.cos(angle), Math.sin(angle)].map((turn) => Math.fround(turn * (amount ?? NaN))) as [number, number];
    const a = x[adjacent ? 2 * j : j] ?? NaN, b = x[adjacent ? 2 * j + 1 : half + j] ?? NaN;
    return { factors: later ? { x: [b, a], turn: [cos, sin] } : { x: [a, b], turn: [cos, -sin] } };
  },
  "last row": (c) => {
    const all = c.input(0), width = all.length / c.step.fed.length;
    return { factors: { x: [all[all.length - width + (c.at[0] ?? 0)] ?? NaN] } };
  },
};

// The last axis of a norm's input around the cell, and its gain: of a weight for all heads, or of the head's own.
function normed(c: Cell): { x: number; row: number[]; gain: Columns } {
  const { row, last } = c.around(0), gains = c.weight(0), w = gains[c.offset % gains.length];
  return { x: row[last] ?? NaN, row, gain: w === undefined ? {} : c.tensor.settings["offset"] ? { gain: [1 + w] } : { weight: [w] } };
}

function gated(c: Cell): Made {
  const x = c.rowOf(0)[c.offset] ?? NaN, up = c.tensor.inputs.length > 1 ? [c.rowOf(1)[c.offset] ?? NaN] : undefined;
  return { factors: { act: [act(String(c.tensor.settings["act"]))?.(x) ?? NaN], ...(up ? { up } : {}) }, about: { x } };
}

// An attention's output: the shares of the keys times their values, from scores in double.
function mixed(c: Cell): Made {
  const [, t = 0, h = 0, w = 0] = c.at, a = c.run.attended(c.step, c.part);
  if (!a) return { factors: {} };
  const { e, sum } = a.softened(Array.from({ length: a.keys }, (_, s) => a.raw(h, t, s)), t);
  return { factors: { pattern: e.map((x) => x / sum), v: e.map((_, s) => a.value(h, s)[w] ?? NaN) } };
}

export function termsOf(run: LiveRun, n: number, at: readonly number[]): Terms {
  const { step, tensor, shape } = run.at(n);
  return summed(OPS[tensor.op ?? ""]?.(new Cell(run, step, tensor, shape, at)) ?? { factors: {} }, (name) => tensor.labels[name] ?? name);
}
