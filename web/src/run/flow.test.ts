import { describe, expect, it } from "vitest";
import { flows } from "./flow";
import type { Tensor } from "./types";

let n = 0;
const made = (path: string, ...inputs: string[]): Tensor =>
  ({ n: n++, path, block: "", name: path, settings: {}, min: null, mean: null, max: null, dims: "B T D", shape: [1, 5, 8], dtype: "float32", step: 0, call: 0, source: "executed", error: null, op: "add", result: "sum", made: "", inputs, weights: [], bytes: 0, parameters: 0, flops: 0, rows: null, stats: null, kept: true, terms: true, notes: [], put: "" });
const all = [made("embed"), ...[0, 1, 2].flatMap((i) => { const before = i === 0 ? "embed" : `layers.${i - 1}.out`; return [made(`layers.${i}.norm`, before), made(`layers.${i}.ffn`, `layers.${i}.norm`, "memory"), made(`layers.${i}.out`, before, `layers.${i}.ffn`)]; }), made("norm", "layers.2.out")];

describe("lines between cards", () => {
  it("are the tensors' inputs where all are drawn", () => {
    const lines = flows(all, new Set(all.map((t) => t.path)));
    expect(lines.every((f) => !f.folded)).toBe(true);
    expect(lines.length).toBe(all.reduce((k, t) => k + t.inputs.filter((p) => p !== "memory").length, 0));
  });

  it("go through what is folded, once, to what it was made from", () => {
    const drawn = new Set(["embed", "layers.0.norm", "layers.0.ffn", "layers.0.out", "layers.2.out", "norm"]);
    expect(flows(all, drawn).filter((f) => f.folded)).toEqual([{ from: "layers.0.out", to: "layers.2.out", folded: true }]);
  });

  it("end where nothing drawn comes before", () => expect(flows(all, new Set(["norm"]))).toEqual([]));
});
