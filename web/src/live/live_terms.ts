// What a cell's number is made of: its factors by name, what is added, and the sum, in double, as the ops of src/pellucid/ops tell it.

import type { Terms } from "../run/types";
import { act } from "../sums/acts";
import { joined, type LiveRun, type LiveStep } from "./live_run";
import type { StepTensor } from "./present";

type Columns = Record<string, number[]>;
interface Made { factors: Columns; added?: Record<string, number>; about?: Record<string, number> }

// A cell of a tensor in one step, and what it was made from.
class Cell {
  constructor(readonly run: LiveRun, readonly step: LiveStep, readonly tensor: StepTensor, readonly shape: readonly number[], readonly at: readonly number[]) {}

  get row(): number { return this.at[1] ?? 0; } // of tensors [B T ...]
  get position(): number { return this.step.past + this.row; }
  get keys(): number { return this.step.past + this.step.fed.length; }

  // Where the cell lies within its row.
  get offset(): number { return this.at.slice(2).reduce((n, i, axis) => n * (this.shape[axis + 2] ?? 1) + i, 0); }

  input(i: number): Float32Array { return this.step.values.get(this.tensor.inputs[i] ?? "") ?? new Float32Array(); }
  weight(i: number): Float32Array { return this.run.model.weight(this.tensor.weights[i] ?? ""); }

  // The numbers of a row of an input of the step.
  rowOf(i: number): number[] {
    const x = this.input(i), width = x.length / this.step.fed.length;
    return [...x.subarray(this.row * width, (this.row + 1) * width)];
  }

  // All rows of a tensor that the cache keeps, up to this step's last.
  stored(path: string): Float32Array {
    const steps = this.run.steps.slice(0, this.run.steps.indexOf(this.step) + 1);
    return joined(steps.map((s) => s.values.get(path) ?? new Float32Array()));
  }

  // The scores of one query with every key, in double; -Infinity where the mask hides a key.
  scores(query: string, key: string, h: number, t: number, scale: number, hidden: boolean): number[] {
    const part = query.replace(/\.[^.]+$/, "");
    const q = this.vector(this.step.values.get(query) ?? new Float32Array(), query, t, h), k = this.stored(key), position = this.step.past + t;
    const [first, after] = this.run.model.seen(part, position);
    return Array.from({ length: this.keys }, (_, s) => {
      if (hidden && (s < first || s >= after)) return -Infinity;
      const other = this.vector(k, key, s, this.group(query, key, h));
      return q.reduce((sum, x, i) => sum + x * (other[i] ?? 0), 0) * scale;
    });
  }

  group(query: string, key: string, h: number): number { return Math.floor(h / (this.heads(query) / this.heads(key))); }
  heads(path: string): number { return this.run.model.shape(path)[2] ?? 1; }
  vector(x: Float32Array, path: string, row: number, head: number): number[] {
    const [, , heads = 1, width = 1] = this.run.model.shape(path), from = (row * heads + head) * width;
    return [...x.subarray(from, from + width)];
  }
}

// By op. A term that is undefined is left out.
const OPS: Record<string, (c: Cell) => Made> = {
  linear: (c) => {
    const x = c.rowOf(0), w = c.weight(0), bias = c.tensor.weights.length > 1 ? c.weight(1)[c.offset] : undefined;
    return { factors: { x, weight: [...w.subarray(c.offset * x.length, (c.offset + 1) * x.length)] }, ...(bias === undefined ? {} : { added: { bias } }) };
  },
  look: (c) => {
    const width = c.shape.at(-1) ?? 1, id = (c.tensor.path === "positions" ? c.position : (c.step.fed[c.row] ?? 0)) + Number(c.tensor.settings["skip"] ?? 0);
    return { factors: { weight: [c.weight(0)[id * width + c.offset] ?? NaN] } };
  },
  add: (c) => ({ factors: {}, added: { x: c.rowOf(0)[c.offset] ?? NaN, y: c.rowOf(1)[c.offset] ?? NaN } }),
  scores: (c) => {
    const [, h = 0, t = 0, s = 0] = c.at, [query = "", key = ""] = c.tensor.inputs, scale = Number(c.tensor.settings["scale"]);
    const q = c.vector(c.input(0), query, t, h), k = c.vector(c.stored(key), key, s, c.group(query, key, h));
    return { factors: { q, k, ...(scale === 1 ? {} : { scale: q.map(() => scale) }) } };
  },
  softmax: (c) => {
    const [, h = 0, t = 0, s = 0] = c.at, raw = c.input(0), part = c.tensor.path.replace(/\.[^.]+$/, "");
    const [first, after] = c.run.model.seen(part, c.step.past + t);
    const row = Array.from({ length: c.keys }, (_, i) => (i < first || i >= after ? -Infinity : (raw[(h * c.step.fed.length + t) * c.keys + i] ?? NaN)));
    const top = Math.max(...row), e = row.map((x) => Math.exp(x - top)), sum = e.reduce((a, b) => a + b, 0);
    return { factors: { e: [e[s] ?? NaN], over: [1 / sum] }, about: { x: row[s] ?? NaN, top, sum } };
  },
  attend: (c) => {
    const [, t = 0, h = 0, w = 0] = c.at, [query = "", key = "", value = ""] = c.tensor.inputs, part = c.tensor.path.replace(/\.[^.]+$/, "");
    const scale = Number(c.run.model.document.tensors.find((one) => one.path === `${part}.scores`)?.settings["scale"]);
    const row = c.scores(query, key, h, t, scale, true), top = Math.max(...row), e = row.map((x) => Math.exp(x - top)), sum = e.reduce((a, b) => a + b, 0), v = c.stored(value);
    return { factors: { pattern: e.map((x) => x / sum), v: e.map((_, s) => c.vector(v, value, s, c.group(query, value, h))[w] ?? NaN) } };
  },
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
    const turn = c.run.model.plan.turn(c.tensor.path), width = c.shape.at(-1) ?? 1, last = c.at.at(-1) ?? 0, all = c.rowOf(0), x = all.slice(c.offset - last, c.offset - last + width);
    if (!turn || last >= 2 * turn.half) return { factors: { x: [x[last] ?? NaN], turn: [1] } };
    const [j, later] = turn.interleaved ? [Math.floor(last / 2), last % 2] : [last % turn.half, Math.floor(last / turn.half)], [cos, sin] = turn.at(c.position, j);
    const a = x[turn.interleaved ? 2 * j : j] ?? NaN, b = x[turn.interleaved ? 2 * j + 1 : turn.half + j] ?? NaN;
    return { factors: later ? { x: [b, a], turn: [cos, sin] } : { x: [a, b], turn: [cos, -sin] } };
  },
  "last row": (c) => {
    const all = c.input(0), width = all.length / c.step.fed.length;
    return { factors: { x: [all[all.length - width + (c.at[0] ?? 0)] ?? NaN] } };
  },
};

// The last axis of a norm's input around the cell, and its gain.
function normed(c: Cell): { x: number; row: number[]; gain: Columns } {
  const width = c.shape.at(-1) ?? 1, last = c.at.at(-1) ?? 0, all = c.rowOf(0), row = all.slice(c.offset - last, c.offset - last + width), w = c.weight(0)[last];
  return { x: row[last] ?? NaN, row, gain: w === undefined ? {} : c.tensor.settings["offset"] ? { gain: [1 + w] } : { weight: [w] } };
}

function gated(c: Cell): Made {
  const x = c.rowOf(0)[c.offset] ?? NaN, up = c.tensor.inputs.length > 1 ? [c.rowOf(1)[c.offset] ?? NaN] : undefined;
  return { factors: { act: [act(String(c.tensor.settings["act"]))?.(x) ?? NaN], ...(up ? { up } : {}) }, about: { x } };
}

const finite = (x: number): number | null => (Number.isFinite(x) ? x : null);

export function termsOf(run: LiveRun, n: number, at: readonly number[]): Terms {
  const { step, tensor, shape } = run.at(n), made: Made = OPS[tensor.op ?? ""]?.(new Cell(run, step, tensor, shape, at)) ?? { factors: {} }, { factors, added = {}, about = {} } = made;
  const columns = Object.entries(factors), length = Math.max(0, ...columns.map(([, x]) => x.length)), label = (name: string): string => tensor.labels[name] ?? name;
  const products = Array.from({ length }, (_, i) => columns.reduce((product, [, x]) => product * (x[i] ?? NaN), 1)), summands = [...products, ...Object.values(added)];
  const single = columns.filter(([, x]) => x.length === 1).map(([name, x]) => [name, x[0] ?? NaN] as const);
  return {
    factors: Object.fromEntries(columns.map(([name, x]) => [label(name), x.map(finite)])), added: Object.fromEntries(Object.entries(added).map(([name, x]) => [label(name), finite(x)])),
    numbers: Object.fromEntries([...single, ...Object.entries(added), ...Object.entries(about)].map(([name, x]) => [name, finite(x)])),
    summands: summands.map(finite), total: finite(summands.reduce((a, b) => a + b, 0)), count: summands.length,
  };
}
