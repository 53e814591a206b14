// A token's logit as the sum of what heads and feed-forward parts added, with each norm's scale constant: analysis/walk_back.py, for the ops of
// decoders and encoders.

import type { AttributionDocument, ShareDocument } from "../run/documents";
import type { LiveRun, LiveStep } from "./live_run";
import type { StepTensor } from "./present";

class Walk {
  readonly parts: ShareDocument[] = [];
  readonly rest: ShareDocument[] = [];
  private readonly byPath: Map<string, StepTensor>;
  constructor(private readonly run: LiveRun, private readonly step: LiveStep, private readonly row: number) {
    this.byPath = new Map(run.model.document.tensors.map((t) => [t.path, t]));
  }

  at(path: string): Float64Array {
    const x = this.step.values.get(path) ?? new Float32Array(), width = x.length / this.step.fed.length;
    return Float64Array.from(x.subarray(this.row * width, (this.row + 1) * width));
  }

  add(to: ShareDocument[], path: string, head: number | null, value: number): void {
    const known = to.find((s) => s.path === path && s.head === head);
    if (known) known.value = (known.value ?? 0) + value;
    else to.push({ path, head, value });
  }

  // g: the gradient of the logit in the channels of this row.
  back(path: string, g: Float64Array): void {
    const t = this.byPath.get(path), name = path.split(".").at(-1), first = t?.inputs[0] ?? "";
    if (name === "ffn") return this.add(this.parts, path, null, dot(g, this.at(path)));
    if ((name === "attn" || name === "cross") && t?.op === "linear") return this.heads(t, first, g);
    if (t?.op === "add") return t.inputs.forEach((one) => { this.back(one, g); });
    if (t?.op === "linear") return this.back(first, this.weighed(t, g));
    if (t?.op === "act") return this.back(first, this.ratio(path, first, g));
    if (t?.op === "rms" || t?.op === "layer norm") return this.norm(t, first, g);
    return this.add(this.rest, path, null, dot(g, this.at(path)));
  }

  private heads(t: StepTensor, z: string, g: Float64Array): void {
    const own = this.weighed(t, g), x = this.at(z), count = this.run.model.sizes(z)[2] ?? 1, width = x.length / count;
    for (let h = 0; h < count; h++) this.add(this.parts, t.path, h, dot(own.subarray(h * width, (h + 1) * width), x.subarray(h * width, (h + 1) * width)));
  }

  // The gradient in the operand of a product; its bias is added.
  weighed(t: StepTensor, g: Float64Array): Float64Array {
    const { weights } = this.run.model, path = t.weights[0] ?? "", width = (weights.shape(path) ?? []).slice(1).reduce((n, m) => n * m, 1), out = new Float64Array(width);
    const matrix = g.filter((x) => x !== 0).length > 1 ? weights.matrix(path) : undefined; // of a vocabulary's table one row is enough
    if (t.weights[1]) this.add(this.rest, t.weights[1], null, dot(g, this.run.model.weight(t.weights[1])));
    g.forEach((x, i) => {
      if (x === 0) return;
      const row = matrix ? matrix.subarray(i * width, (i + 1) * width) : weights.row(path, i);
      for (let j = 0; j < width; j++) out[j] = (out[j] ?? 0) + x * (row[j] ?? 0);
    });
    return out;
  }

  // An activation as x · (f(x) / x), with the quotient constant.
  private ratio(path: string, from: string, g: Float64Array): Float64Array {
    const x = this.at(from), y = this.at(path);
    return g.map((v, i) => (x[i] === 0 ? 0 : (v * (y[i] ?? 0)) / (x[i] ?? 1)));
  }

  private norm(t: StepTensor, from: string, g: Float64Array): void {
    const centred = t.op === "layer norm", x = this.at(from), w = this.run.model.weight(t.weights[0] ?? ""), offset = Number(t.settings["offset"] ?? 0);
    if (t.weights[1]) this.add(this.rest, t.weights[1], null, dot(g, this.run.model.weight(t.weights[1])));
    const mean = centred ? x.reduce((a, b) => a + b, 0) / x.length : 0, square = x.reduce((n, v) => n + (v - mean) ** 2, 0) / x.length;
    const scaled = g.map((v, i) => (v * (w.length > 0 ? (w[i] ?? 0) + offset : 1)) / Math.sqrt(square + Number(t.settings["eps"])));
    const middle = centred ? scaled.reduce((a, b) => a + b, 0) / scaled.length : 0;
    this.back(from, scaled.map((v) => v - middle));
  }
}

const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => Array.from(a).reduce((n, x, i) => n + x * (b[i] ?? 0), 0);

// Undefined where the logits are no plain product of the last norm.
export function whyOf(run: LiveRun, k: number, row: number, id: number): AttributionDocument | undefined {
  const step = run.steps[k], logits = run.model.document.tensors.find((t) => t.path === "logits");
  if (!step || logits?.op !== "linear") return undefined;
  const walk = new Walk(run, step, row < 0 ? step.fed.length + row : row), g = new Float64Array(run.model.document.pieces.length);
  g[id] = 1;
  walk.back(logits.inputs[0] ?? "", walk.weighed(logits, g));
  const total = [...walk.parts, ...walk.rest].reduce((n, s) => n + (s.value ?? 0), 0);
  return { schema: 1, run: run.id, step: k, row, id, path: "logits", value: walk.at("logits")[id] ?? null, total, parts: walk.parts, rest: walk.rest };
}
