import { describe, expect, it } from "vitest";
import type { Tensor } from "../run/types";
import { act, erf, points } from "./acts";
import { ordered, range, running } from "./order";
import { cellsOf, matched, operands, origins, size, type Stretch } from "./origins";
import { followed, read, written } from "./trail";
import curves from "./curves.json";

const tensor = (path: string, dims: string, shape: number[], n: number, more: Partial<Tensor> = {}): Tensor => ({
  n, path, block: "", name: path, settings: {}, min: null, mean: null, max: null, dims, shape, dtype: "float32", step: 0, call: 0, source: "executed", error: null, op: "op", result: null, made: "",
  notes: [], put: "", inputs: [], weights: [], bytes: 0, parameters: 0, flops: null, rows: null, stats: null, kept: true, terms: true, ...more,
});
const stretch = (path: string, values: number[]): Stretch => ({ values, of: tensor(path, "K", [values.length], 0), cell: (i) => [i] });
const run = { steps: [{ step: 0, past: 0 }, { step: 1, past: 3 }] } as never;

describe("where a number stands", () => {
  const norm = tensor("norm", "B T D", [1, 3, 4], 0), q = tensor("q", "B T H K", [1, 3, 2, 4], 1, { result: "product", inputs: ["norm"], weights: ["q.weight", "q.bias"] });
  const k = tensor("k", "B T G K", [1, 3, 1, 4], 2), scores = tensor("scores", "B H T S", [1, 2, 3, 3], 3, { result: "scores", inputs: ["q", "k"] });
  const weights = [tensor("q.weight", "(H K) D", [8, 4], -1), tensor("q.bias", "(H K)", [8], -2)];

  it("is a row of the input and of the weight", () => {
    const all = operands(run, q, [0, 2, 1, 3], [[norm, q]], weights, undefined, undefined);
    expect(all.map((o) => [o.tensor.path, o.at])).toEqual([["norm", [0, 2, null]], ["q.weight", [7, null]], ["q.bias", [7]]]);
    expect(all.map(size)).toEqual([4, 4, 1]);
    expect(cellsOf(all[1] as never)(2)).toEqual([7, 2]);
  });

  it("is the query's row and the key's, of the head that they share", () => {
    const all = operands(run, scores, [0, 1, 2, 1], [[norm, q, k, scores]], [], undefined, undefined);
    expect(all.map((o) => [o.tensor.path, o.at])).toEqual([["q", [0, 2, 1, null]], ["k", [0, 1, 0, null]]]);
  });

  it("is a row of an earlier step, where the cache had it", () => {
    const later = { n: 10, step: 1 }, q1 = { ...q, ...later, shape: [1, 1, 2, 4] }, k1 = { ...k, ...later, n: 11, shape: [1, 1, 1, 4] }, s1 = { ...scores, ...later, n: 12, shape: [1, 2, 1, 4] };
    const places = (s: number): unknown => operands(run, s1, [0, 0, 0, s], [[norm, q, k, scores], [q1, k1, s1]], [], undefined, undefined).map((o) => [o.tensor.path, o.tensor.step, o.at]);
    expect(places(1)).toEqual([["q", 1, [0, 0, 0, null]], ["k", 0, [0, 1, 0, null]]]);
    expect(places(3)).toEqual([["q", 1, [0, 0, 0, null]], ["k", 1, [0, 0, 0, null]]]);
  });

  it("is found by the number alone, and not where another is", () => {
    const all = [stretch("a", [1, 2, 3]), stretch("b", [7, 8])];
    expect(matched([2, 3, 8], all).map((o) => `${o?.path} ${o?.cell.join()}`)).toEqual(["a 1", "a 2", "b 1"]);
    expect(matched([9, 2], all)).toEqual([undefined, { path: "a", cell: [1], step: 0 }]);
    expect(matched([5], [stretch("c", [5, 5])])).toEqual([undefined]); // which of the two?
    const again = (source: Tensor["source"]): Stretch => ({ ...stretch("p", [0.25, 0.5]), of: tensor("p", "S", [2], 0, { source }) });
    expect(matched([0.25, 0.5 + 1e-7], [again("recomputed")]).map((o) => o?.cell)).toEqual([[0], [1]]);
    expect(matched([0.25, 0.5 + 1e-7], [again("executed")]).map((o) => o?.cell)).toEqual([[0], undefined]);
    expect(matched([0.25, 0.5 + 1e-4], [again("recomputed")]).map((o) => o?.cell)).toEqual([[0], undefined]);
    expect(matched([5, 5], [stretch("c", [5, 5])]).map((o) => o?.cell)).toEqual([[0], [1]]);
  });

  it("is told of every factor, of what is added, and of a template's numbers", async () => {
    const values: Record<string, number[]> = { norm: [1, 2, 3, 4], "q.weight": [5, 6, 7, 8], "q.bias": [9] };
    const sum = { factors: { norm: [1, 2, 3, 4], W_q: [5, 6, 7, 8], scale: [0.5, 0.5, 0.5, 0.5] }, added: { b_q: 9 }, summands: [2.5, 6, 10.5, 16, 9], numbers: { x: 3, rms: 3 } };
    const places = await origins(sum, operands(run, q, [0, 2, 1, 3], [[norm, q]], weights, undefined, undefined), (o) => Promise.resolve(values[o.tensor.path] ?? []));
    expect([...places.keys()]).toEqual(["norm", "W_q", "+b_q", "?x"]);
    expect([places.get("W_q")?.[3], places.get("+b_q")?.[0], places.get("?x")?.[0]]).toEqual([
      { path: "q.weight", cell: [7, 3], step: 0 }, { path: "q.bias", cell: [7], step: 0 }, { path: "norm", cell: [0, 2, 2], step: 0 }]);
  });
});

describe("a trail", () => {
  const a = { path: "logits", cell: "0,4,77", step: 0 }, b = { path: "norm", cell: "0,4,7", step: 0 }, c = { path: "layers.0.attn.k", cell: "0,1", step: 2 };

  it("is written and read back", () => {
    expect(written([a, c])).toBe("logits 0,4,77; layers.0.attn.k 0,1@2");
    expect(read(written([a, b, c]))).toEqual([a, b, c]);
    expect(["", "x", "a 1,", "a 1; ", "a 1@x", Array(65).fill("a 1").join("; ")].map((text) => read(text).length)).toEqual([0, 0, 0, 0, 0, 0]);
  });

  it("grows by a step, keeps what lies behind if it is the same way, and leaves it for another", () => {
    expect(followed([], a, b)).toEqual([a, b]);
    expect(followed([a, b], b, c)).toEqual([a, b, c]);
    expect(followed([a, b, c], a, b)).toEqual([a, b, c]);
    expect(followed([a, b, c], a, c)).toEqual([a, c]);
    expect(followed([a, b], c, b)).toEqual([c, b]);
  });
});

describe("a sum that is drawn", () => {
  it("goes from term to term, the largest first", () => {
    const summands = [1, -4, 2, null], order = ordered(summands, true);
    expect(order).toEqual([1, 2, 0, 3]);
    expect(ordered(summands, false)).toEqual([0, 1, 2, 3]);
    const drawn = running(summands, order, 3);
    expect(drawn.map((d) => [d.term, d.from, d.to])).toEqual([[1, 0, -4], [2, -4, -2], [0, -2, -1]]);
    expect(range(drawn, -1)).toEqual({ low: -4, high: 0 });
    expect(range([], 0)).toEqual({ low: -1, high: 1 });
  });
});

describe("activations", () => {
  it.each(Object.entries(curves.acts))("%s is the op's", (name, expected) => {
    curves.x.forEach((x, i) => expect(Math.abs((act(name)?.(x) ?? NaN) - (expected[i] ?? NaN)), `${name}(${x})`).toBeLessThan(1e-12 * Math.max(1, Math.abs(x) ** 2)));
  });

  it("are drawn around the number", () => {
    expect(points((x) => x, 9, 3)).toEqual([{ x: -4, y: -4 }, { x: 3, y: 3 }, { x: 10, y: 10 }]);
    expect([erf(0), erf(9), erf(-9)]).toEqual([0, 1, -1]);
    expect(act("unknown")).toBeUndefined();
  });
});
