// The terms of a recorded run's cells that its file does not carry, from what it does: the tensors' values, and a weight's numbers out of a
// carried cell of the same output. Terms whose sum is not the cell's number, up to rounding, are not given.

import { act } from "../sums/acts";
import { soft, summed, type Made } from "../sums/made";
import { decode, type Values } from "../tensor/decode";
import type { Columns } from "./columns";
import { cellOf } from "./columns";
import { hidden, hiding } from "./hidden";
import { recorded, unpacked } from "./recorded";
import { turnOf } from "./turning";
import { axes, type Run, type Tensor, type Terms } from "./types";

const ROUNDING: Record<string, number> = { float64: 1e-12, float32: 1e-5, bfloat16: 2 ** -6, float16: 2 ** -9 }; // of a cell, by the sum of magnitudes

export class RecordedTerms {
  private readonly read = new Map<number, Values>();
  private readonly all: Tensor[];

  constructor(private readonly run: Run, private readonly columns: Columns) {
    this.all = [...run.tensors, ...run.steps.slice(1).flatMap((_, k) => (recorded?.answers[`runs/${run.run}/steps/${k + 1}`] as { tensors: Tensor[] } | undefined)?.tensors ?? [])];
  }

  private values(n: number): Values | undefined {
    const stored = recorded?.tensors[n], known = this.read.get(n);
    if (known || !stored) return known;
    const values = decode({ ...stored, bytes: unpacked(stored.bytes) });
    this.read.set(n, values);
    return values;
  }

  private at(path: string | undefined, step: number): { tensor: Tensor; values: Values } | undefined {
    const tensor = this.all.find((t) => t.path === path && t.step === step), values = tensor && this.values(tensor.n);
    return tensor && values ? { tensor, values } : undefined;
  }

  // The numbers behind the tokens' axis at one row: all heads of it.
  private row(path: string | undefined, step: number, row: number): Values | undefined {
    const entry = this.at(path, step), T = entry ? axes(entry.tensor).indexOf("T") : -1;
    if (!entry || T < 0 || entry.tensor.shape.slice(0, T).some((n) => n !== 1)) return undefined;
    const width = entry.tensor.shape.slice(T + 1).reduce((n, size) => n * size, 1);
    return entry.values.subarray(row * width, (row + 1) * width);
  }

  // The rows that a step reads, of all tokens so far: its own behind those of the steps before it. Keys that were grown from latents are all in one step.
  private rows(path: string | undefined, step: number, keys: number): Values[] | undefined {
    const grown = this.at(path, step), S = grown ? axes(grown.tensor).indexOf("S") : -1, out: Values[] = [];
    if (grown && S === 1) { const width = grown.values.length / keys; return Array.from({ length: keys }, (_, s) => grown.values.subarray(s * width, (s + 1) * width)); }
    for (let k = Math.max(0, this.begin(step)); k <= step; k++)
      for (let r = 0; r < this.count(path, k); r++) { const row = this.row(path, k, r); if (row) out.push(row); }
    return out.length === keys ? out : undefined;
  }

  // The last step up to this one that read its text from the first token: a text that outgrows its rotary frequencies is read again.
  private begin(step: number): number { return this.run.steps.findLastIndex((s, k) => k <= step && s.past === 0); }

  // The tokens of a tensor in a step, and in the steps before it whose rows it reads.
  private count(path: string | undefined, step: number): number { const t = this.all.find((one) => one.path === path && one.step === step); return t?.shape[axes(t).indexOf("T")] ?? 0; }
  private past(path: string | undefined, step: number): number {
    let sum = 0;
    for (let k = Math.max(0, this.begin(step)); k < step; k++) sum += this.count(path, k);
    return sum;
  }

  // A carried cell of the same output, of any token and step: its weights are this cell's.
  private alike(t: Tensor, cell: readonly number[]): Terms | undefined {
    const T = Math.max(axes(t).indexOf("T"), axes(t).indexOf("S")), size = t.shape.slice(T + 1).reduce((n, one) => n * one, 1), offset = cellOf(t.shape, cell) % size;
    if (T < 0) return undefined;
    for (const one of this.all) {
      const entry = one.path === t.path ? this.columns.carried(one.n).find((at) => at % size === offset) : undefined;
      if (entry !== undefined) return this.columns.terms(one.n, entry);
    }
    return undefined;
  }

  private made(t: Tensor, cell: readonly number[]): Made | undefined {
    const names = axes(t), of = (letter: string): number => cell[names.indexOf(letter)] ?? 0, row = of("T"), grown = names.indexOf("T") < 0 && names[1] === "S", size = t.shape.slice(names.indexOf(grown ? "S" : "T") + 1).reduce((n, one) => n * one, 1);
    const offset = cellOf(t.shape, cell) % size, input = (i: number, r = row): Values | undefined => this.row(t.inputs[i], t.step, r);
    const head = (own: Values, heads: number, h: number, all: number): Values => { const width = own.length / heads, g = Math.floor((h * heads) / all); return own.subarray(g * width, (g + 1) * width); };
    const headsOf = (path: string | undefined): number => { const x = this.all.find((one) => one.path === path); return x?.shape[axes(x).findIndex((a) => a === "H" || a === "G")] ?? 1; };
    const part = t.path.slice(0, t.path.lastIndexOf(".")), heads = t.shape[names.indexOf("H")] ?? 1;
    if (t.op === "add") {
      const [x, y] = [input(0)?.[offset], input(1)?.[offset]];
      return x === undefined || y === undefined || t.inputs.length !== 2 ? undefined : { factors: {}, added: { x, y } };
    }
    if (t.op === "act" || t.op === "gate") {
      const x = input(0)?.[offset], up = t.inputs.length > 1 ? input(1)?.[offset] : undefined;
      return x === undefined ? undefined : { factors: { act: [act(String(t.settings["act"]))?.(x) ?? NaN], ...(up === undefined ? {} : { up: [up] }) }, about: { x } };
    }
    if (t.op === "scores") {
      const [first, turned, content, shared] = t.inputs, latent = t.inputs.length === 4, keys = t.shape[names.indexOf("S")] ?? 0, scale = Number(t.settings["scale"] ?? 1);
      const q = input(0), k = this.rows(latent ? content : turned, t.step, keys)?.[of("S")], own = q && head(q, heads, of("H"), heads);
      if (!first || !own || !k) return undefined;
      const against = head(k, headsOf(latent ? content : turned), of("H"), heads), also = latent ? { q: input(1), k: this.rows(shared, t.step, keys)?.[of("S")] } : undefined;
      if (also && !(also.q && also.k)) return undefined;
      // Latent attention: what a head has of its own, then what turns, of which all heads share the key.
      const query = also?.q ? [...own.subarray(0, against.length), ...head(also.q, heads, of("H"), heads)] : Array.from(own), key = [...against, ...(also?.k ?? [])];
      return { factors: { q: query, k: key, ...(scale === 1 ? {} : { scale: query.map(() => scale) }) } };
    }
    if (t.op === "softmax" && names.includes("S")) {
      const scores = this.at(t.inputs[0], t.step), keys = t.shape[names.indexOf("S")] ?? 0, from = cellOf(t.shape, cell) - of("S"), veiled = hiding(this.run, t);
      if (!scores || scores.values.length !== t.shape.reduce((n, one) => n * one, 1)) return undefined;
      const line = Array.from({ length: keys }, (_, s) => (hidden(veiled, t, cell.map((i, a) => (names[a] === "S" ? s : i))) ? -Infinity : (scores.values[from + s] ?? NaN)));
      return soft(line, of("S"));
    }
    if (t.op === "rotate") return this.turned(t, cell, row, input(0), offset);
    if (t.op === "attend" || t.op === "attend latent") {
      const from = t.op === "attend" ? t.inputs[2] : `${part}.v`, pattern = this.at(`${part}.pattern`, t.step), keys = pattern?.tensor.shape.at(-1) ?? 0, values = this.rows(from, t.step, keys), h = of("H");
      if (!pattern || !values || values.length === 0) return undefined;
      const at = (h * (pattern.tensor.shape.at(-2) ?? 1) + row) * keys;
      return { factors: { pattern: Array.from(pattern.values.subarray(at, at + keys)), v: values.map((v) => head(v, headsOf(from), h, heads)[cell.at(-1) ?? 0] ?? NaN) } };
    }
    const like = this.alike(t, cell), own = Object.values(like?.factors ?? {}), bias = Object.values(like?.added ?? {})[0];
    if (!like) return undefined;
    if (t.op === "linear") {
      const x = grown ? this.rows(t.inputs[0], t.step, t.shape[1] ?? 0)?.[of("S")] : input(0), weight = own[1];
      return own.length !== 2 || !x || !weight || weight.length !== x.length ? undefined : { factors: { x: Array.from(x), weight: weight.map((w) => w ?? NaN) }, ...(bias == null ? {} : { added: { bias } }) };
    }
    if (t.op === "convolve") {
      const weight = own[1], at = this.past(t.inputs[0], t.step) + row, all = this.rows(t.inputs[0], t.step, at - row + this.count(t.inputs[0], t.step));
      if (own.length !== 2 || !weight || !all) return undefined;
      const x = weight.map((_, j) => all[at + 1 - weight.length + j]?.[offset] ?? 0); // zeros before the text's start
      return { factors: { x, weight: weight.map((w) => w ?? NaN) }, ...(bias == null ? {} : { added: { bias } }) };
    }
    if (t.op === "layer norm" || t.op === "rms") {
      const all = input(0), width = t.shape.at(-1) ?? 1, line = all && Array.from(all.subarray(offset - (offset % width), offset - (offset % width) + width)), gain = own[2]?.[0], eps = Number(t.settings["eps"] ?? 0);
      if (!line) return undefined;
      const x = line[offset % width] ?? NaN, mean = t.op === "rms" ? 0 : line.reduce((a, b) => a + b, 0) / width, size = Math.sqrt(line.reduce((n, v) => n + (v - mean) ** 2, 0) / width + eps);
      const factors = { [t.op === "rms" ? "x" : "centred"]: [x - mean], over: [1 / size], ...(gain == null ? {} : { weight: [gain] }) };
      return { factors, ...(bias == null ? {} : { added: { bias } }), about: t.op === "rms" ? { rms: size } : { x, mean, deviation: size } };
    }
    return undefined;
  }

  // A cell of a rotation, by the angles of its base, and of its text's length where that stretches the base.
  private turned(t: Tensor, cell: readonly number[], row: number, x: Values | undefined, offset: number): Made | undefined {
    const n = t.shape.at(-1) ?? 1, last = cell.at(-1) ?? 0, source = this.all.find((one) => one.path === t.inputs[0] && one.step === t.step), width = source?.shape.at(-1) ?? n;
    const { theta, width: turning, pairs } = t.settings, past = this.past(t.path, t.step), half = Number(turning) / 2, from = Math.floor(offset / n) * width + width - n; // the last channels turn
    if (!x || typeof theta !== "number" || !(half > 0)) return undefined;
    if (last >= 2 * half) return { factors: { x: [x[from + last] ?? NaN], turn: [1] } };
    const adjacent = pairs === "adjacent", j = adjacent ? Math.floor(last / 2) : last % half, later = adjacent ? last % 2 === 1 : last >= half;
    const a = x[from + (adjacent ? 2 * j : j)] ?? NaN, b = x[from + (adjacent ? 2 * j + 1 : half + j)] ?? NaN, [cos, sin] = turnOf(t.settings, past + row, j, past + this.count(t.path, t.step));
    return { factors: later ? { x: [b, a], turn: [cos, sin] } : { x: [a, b], turn: [cos, -sin] } };
  }

  // The names that a carried cell of the tensor, in any step, has for an op's terms, as people read them; the op's own without one.
  private names({ factors, added = {} }: Made, t: Tensor): Map<string, string> {
    const one = this.all.find((other) => other.path === t.path && this.columns.carried(other.n).length > 0), carried = one && this.columns.terms(one.n, this.columns.carried(one.n)[0] ?? 0);
    const pairs = (own: object, theirs: object = {}): [string, string][] => { const [a, b] = [Object.keys(own), Object.keys(theirs)]; return a.length === b.length ? a.map((name, i) => [name, b[i] ?? name]) : []; };
    return new Map([...pairs(factors, carried?.factors), ...pairs(added, carried?.added)]);
  }

  terms(n: number, cell: readonly number[]): Terms | undefined {
    const t = this.all.find((one) => one.n === n), value = t && this.values(n)?.[cellOf(t.shape, cell)], made = t && value !== undefined ? this.made(t, cell) : undefined;
    if (!t || value === undefined || !made) return undefined;
    const names = this.names(made, t), terms = summed(made, (name) => names.get(name) ?? name), { total, summands } = terms;
    const near = (ROUNDING[t.dtype] ?? 0) * summands.reduce<number>((a, b) => a + Math.abs(b ?? NaN), 1e-12);
    return total !== null && Math.abs(total - value) <= near ? terms : undefined;
  }
}
