import { describe, expect, it } from "vitest";
import { Columns, cellOf } from "./columns";
import { sees, stretch, type Mask } from "../draw/mask";
import { NOWHERE, read, written } from "../link";
import { OFF } from "../sampling/stages";
import * as settings from "../sampling/settings";
import * as sweeps from "./sweep";
import { letter, lettered, role } from "./role";
import { attributed, byBlock, total } from "./lens";
import { blocks, groups as abreast, river, split } from "./river";
import { grouped } from "./groups";
import { makers, sources } from "./sources";
import { axes, type Routing, type Tensor } from "./types";

let n = 0;
const tensor = (path: string, dims: string, shape: number[], result: Tensor["result"], inputs: string[]): Tensor =>
  ({ n: n++, path, block: "", name: path, settings: {}, min: null, mean: null, max: null, dims, shape, dtype: "float32", step: 0, call: 0, source: "executed", error: null, op: null, result, made: "", notes: [], put: "", inputs, weights: [], bytes: 0, parameters: 0, flops: 0, rows: null, stats: null, kept: true, terms: true });

const run = [
  tensor("embed", "B T D", [1, 5, 8], "embedding", []),
  tensor("layers.0.attn_norm", "B T D", [1, 5, 8], null, ["embed"]),
  tensor("layers.0.attn.q", "B T H K", [1, 5, 4, 2], "product", ["layers.0.attn_norm"]),
  tensor("layers.0.attn.k", "B T G K", [1, 5, 2, 2], "product", ["layers.0.attn_norm"]),
  tensor("layers.0.attn.v", "B T G K", [1, 5, 2, 2], "product", ["layers.0.attn_norm"]),
  tensor("layers.0.attn.scores", "B H T S", [1, 4, 5, 5], "scores", ["layers.0.attn.q", "layers.0.attn.k"]),
  tensor("layers.0.attn.pattern", "B H T S", [1, 4, 5, 5], "shares", ["layers.0.attn.scores"]),
  tensor("layers.0.attn.z", "B T H K", [1, 5, 4, 2], "attention", ["layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v"]),
  tensor("layers.0.attn", "B T D", [1, 5, 8], "product", ["layers.0.attn.z"]),
  tensor("layers.0.mid", "B T D", [1, 5, 8], "sum", ["embed", "layers.0.attn"]),
  tensor("layers.0.ffn_norm", "B T D", [1, 5, 8], null, ["layers.0.mid"]),
  tensor("layers.0.ffn.up", "B T F", [1, 5, 16], "product", ["layers.0.ffn_norm"]),
  tensor("layers.0.ffn", "B T D", [1, 5, 8], "product", ["layers.0.ffn.up"]),
  tensor("layers.0.out", "B T D", [1, 5, 8], "sum", ["layers.0.mid", "layers.0.ffn"]),
  tensor("norm", "B T D", [1, 5, 8], null, ["layers.0.out"]),
  tensor("logits", "B T V", [1, 5, 32], "product", ["norm"]),
];
const by = (path: string): Tensor => run.find((t) => t.path === path) as Tensor;

describe("the river", () => {
  it("runs down the residual stream, each part an excursion from it", () => {
    expect(river(run).map((r) => [r.stems.map((t) => t.path), r.part, r.columns.map((c) => c.map((t) => split(t.path)[1] || t.path))])).toEqual([
      [["embed"], "attn", [["attn_norm"], ["attn.q", "attn.k", "attn.v"], ["attn.scores"], ["attn.pattern"], ["attn.z"], ["attn"]]],
      [["layers.0.mid"], "ffn", [["ffn_norm"], ["ffn.up"], ["ffn"]]],
      [["layers.0.out"], "norm", [["norm"], ["logits"]]],
    ]);
  });

  it("keeps every tensor, once, whatever it is called", () => {
    const odd = [...run.slice(0, 3), tensor("layers.0.novel.thing", "B T Z", [1, 5, 3], null, ["layers.0.attn.q"]), tensor("layers.0.novel", "B T D", [1, 5, 8], null, ["layers.0.novel.thing"]), ...run.slice(3)];
    expect(river(odd).flatMap((r) => [...r.stems, ...r.columns.flat()]).map((t) => t.path).sort()).toEqual(odd.map((t) => t.path).sort());
  });

  it("puts parts side by side that read the same rows, and no others", () => {
    const parallel = run.map((t) => (t.path === "layers.0.ffn_norm" ? { ...t, inputs: ["embed"] } : t.path === "layers.0.out" ? { ...t, inputs: ["embed", "layers.0.attn", "layers.0.ffn"] } : t)).filter((t) => t.path !== "layers.0.mid");
    expect(abreast(river(parallel), parallel).map((rows) => rows.map((r) => r.part))).toEqual([["attn", "ffn"], ["norm"]]);
    expect(abreast(river(run), run).map((rows) => rows.map((r) => r.part))).toEqual([["attn"], ["ffn"], ["norm"]]);
    const waits = parallel.map((t) => (t.path === "layers.0.ffn.up" ? { ...t, inputs: ["layers.0.attn"] } : t)); // the mutant: it reads what attention adds
    expect(abreast(river(waits), waits).map((rows) => rows.length)).toEqual([1, 1, 1]);
  });

  it("finds blocks of any stack", () => {
    expect(blocks([tensor("encoder.layers.11.ffn.up", "B T F", [1, 1, 1], "product", [])])[0]?.path).toBe("encoder.layers.11");
    expect(split("decoder.layers.3.cross.q")).toEqual(["decoder.layers.3", "cross.q"]);
    expect(split("encoder.norm")).toEqual(["", "encoder.norm"]);
  });
});

describe("sources", () => {
  it("of a score are a query's row and a key's row, of the head that is shared", () => {
    expect([...sources(by("layers.0.attn.scores"), [0, 3, 4, 1], run)]).toEqual([["layers.0.attn.q", [0, 4, 3, null]], ["layers.0.attn.k", [0, 1, 1, null]]]);
  });

  it("of attention's output are the pattern's row and a column of the values", () => {
    expect(makers(by("layers.0.attn.z"), run)).toEqual(["layers.0.attn.pattern", "layers.0.attn.v"]);
    expect([...sources(by("layers.0.attn.z"), [0, 4, 3, 1], run)]).toEqual([["layers.0.attn.pattern", [0, 3, 4, null]], ["layers.0.attn.v", [0, null, 1, 1]]]);
  });

  it("of a product are a whole row, of a sum the same cell", () => {
    expect(sources(by("layers.0.ffn.up"), [0, 2, 9], run).get("layers.0.ffn_norm")).toEqual([0, 2, null]);
    expect(sources(by("layers.0.mid"), [0, 2, 7], run).get("embed")).toEqual([0, 2, 7]);
  });
});

it("roles follow from paths and axes", () => {
  expect(run.map(role)).toEqual(["residual", "norm", "q", "k", "v", "attention", "attention", "attention", "attention", "residual", "norm", "ffn", "ffn", "residual", "norm", "residual"]);
  expect(role({ path: "layers.1.ffn.router", dims: "B T E", result: "product" })).toBe("router");
  expect(role({ path: "layers.1.mamba.y", dims: "B T H W", result: "product" })).toBe("attention");
});

describe("columns of terms", () => {
  const bytes = (values: Float32Array | Float64Array | Int32Array): Uint8Array => new Uint8Array(values.buffer);
  const stored = (dtype: string, shape: number[], values: Float32Array | Float64Array | Int32Array): [string, number[], Uint8Array] => [dtype, shape, bytes(values)];
  const tables: Record<string, [string, number[], Uint8Array]> = {
    short: stored("F32", [6], new Float32Array([1, 2, 3, 0.5, 7, 3.5])),
    long: stored("F64", [3], new Float64Array([0.1, NaN, 3])),
    spans: stored("I32", [6, 3], new Int32Array([0, 0, 2, 1, 0, 2, 0, 2, 4, 1, 1, 3, 0, 4, 5, 0, 5, 6])),
    "7.0.x\na.weight": stored("I32", [2, 3], new Int32Array([4, 0, 2, 29, 2, 1])),
    "7.0": stored("F64", [2], new Float64Array([4, 11])),
    "7.1.x": stored("I32", [1, 2], new Int32Array([5, 3])),
    "7.1": stored("F64", [1], new Float64Array([NaN])),
    "77.0.x": stored("I32", [1, 2], new Int32Array([4, 0])),
    "77.0": stored("F64", [1], new Float64Array([3])),
    "9.0.x\n+b\n?top": stored("I32", [1, 4], new Int32Array([4, 0, 4, 5])),
    "9.0": stored("F64", [1], new Float64Array([10])),
    "9.1.+a\n+b": stored("I32", [1, 3], new Int32Array([5, 4, 5])),
    "9.1": stored("F64", [1], new Float64Array([10.5])),
  };
  const all = new Columns({ metadata: {}, tensors: new Map(Object.entries(tables).map(([name, [dtype, shape, bytes]]) => [name, { dtype, shape, bytes }])) });

  it("are multiplied row by row, and told with the sum that came with the cell", () => {
    expect(all.terms(7, 4)).toEqual({ factors: { x: [1, 2], "a.weight": [3, 0.5] }, added: {}, numbers: {}, summands: [3, 1], total: 4, count: 2 });
    expect(all.terms(7, 5)).toEqual({ factors: { x: [null, 3] }, added: {}, numbers: {}, summands: [null, 3], total: null, count: 2 });
    expect(all.terms(77, 4)?.summands).toEqual([1, 2]);
  });

  it("tell what is added after the products, and the numbers of a template apart", () => {
    expect(all.terms(9, 4)).toEqual({ factors: { x: [1, 2] }, added: { b: 7 }, numbers: { top: 3.5 }, summands: [1, 2, 7], total: 10, count: 3 });
    expect(all.terms(9, 5)).toEqual({ factors: {}, added: { a: 7, b: 3.5 }, numbers: {}, summands: [7, 3.5], total: 10.5, count: 2 });
  });

  it("keep float64 where float32 is not enough, and know nothing of other cells", () => {
    expect(all.terms(7, 29)?.factors["a.weight"]).toEqual([0.1, null]);
    expect(all.terms(7, 6)).toBeUndefined();
    expect(all.terms(8, 4)).toBeUndefined();
    expect(cellOf([2, 5, 3], [1, 4, 2])).toBe(29);
  });
});

describe("links", () => {
  it("give back the place", () => {
    const place = { ...NOWHERE, view: "next", model: "a/b c", prompt: "100% & #1 = “x”", step: 2, head: 3, position: 4, tensor: "layers.0.attn.q", cell: "0,1,2", sampling: "top_k:5" };
    expect(read(`#${written(place)}`)).toEqual(place);
    expect(written(NOWHERE)).toBe("");
  });

  it("are not believed", () => {
    expect(read("#step=1e9&head=-4&position=x&cell=1,evil&steps=100000&prompt=" + "a".repeat(70_000))).toEqual(NOWHERE);
    expect(settings.read("temperature:-1 top_k:2.5 top_p:0.5 nonsense:3 seed:")).toEqual({ ...OFF, top_p: 0.5 });
    expect(settings.read(settings.written({ ...OFF, temperature: 0, seed: 9 }))).toEqual({ ...OFF, temperature: 0, seed: 9 });
  });
});

describe("what a query may see", () => {
  const plain: Mask = { causal: true, window: null, chunk: null, until: 0, source: false, chosen: null, around: false, fill: null };
  const rule = (s: Mask, q: number, k: number): boolean =>
    (!s.causal || k <= q || k < s.until) && (s.window === null || (s.around ? Math.abs(q - k) : q - k) < s.window) && (s.chunk === null || Math.floor(q / s.chunk) === Math.floor(k / s.chunk));

  it("is the model's own rule, whatever is put together", () => {
    for (const causal of [true, false]) for (const window of [null, 1, 3]) for (const chunk of [null, 1, 4]) for (const until of causal ? [0, 1, 5] : [0]) for (const around of [false, true]) {
      const s = { ...plain, causal, window, chunk, until, around };
      for (let q = 0; q < 11; q++) for (let k = 0; k < 11; k++) expect(sees(s, q, k), JSON.stringify([s, q, k])).toBe(rule(s, q, k));
    }
  });

  it("is one stretch of keys", () => {
    expect(stretch({ ...plain, window: 2 }, 5)).toEqual([4, 6]);
    expect(stretch({ ...plain, until: 4 }, 1)).toEqual([0, 4]);
    expect(stretch({ ...plain, window: 3, fill: 0 }, 1)).toEqual([0, Infinity]);
    expect(stretch({ ...plain, causal: false }, 1)).toEqual([0, Infinity]);
  });
});

it("groups are as good as their best few", () => {
  const routing: Routing = { experts: 6, chosen: 2, groups: 3, groups_chosen: 1, group_best: 1, corrected: true, shared: 0 };
  expect(grouped([0.5, 0.1, 0.4, 0.3, 0.2, 0.2], routing).map((g) => [g.first, g.score, g.stays])).toEqual([[0, 0.5, true], [2, Math.fround(0.4), false], [4, Math.fround(0.2), false]]);
  expect(grouped([0.5, 0.125, 0.5, 0.25, 0.25, 0.25], { ...routing, group_best: 2 }).map((g) => [g.score, g.stays])).toEqual([[0.625, false], [0.75, true], [0.5, false]]);
  expect(grouped([1, 2], { ...routing, groups: 1 })).toEqual([{ first: 0, size: 2, score: 2, stays: true }]);
});

it("what was added is told block by block, each attention by its heads", () => {
  const share = (path: string, head: number | null, value: number) => ({ path, head, value });
  const parts = [share("layers.0.attn", 0, 1), share("layers.0.attn", 1, -3), share("layers.0.ffn", null, 5), share("decoder.layers.1.cross", 0, 2)];
  expect(byBlock(parts)).toEqual([
    { block: "layers.0", attentions: [{ path: "layers.0.attn", heads: [1, -3], sum: -2 }], feed: [share("layers.0.ffn", null, 5)] },
    { block: "decoder.layers.1", attentions: [{ path: "decoder.layers.1.cross", heads: [2], sum: 2 }], feed: [] },
  ]);
  expect(total(parts)).toBe(5);
});

it("a share that is not finite is no zero", () => {
  const part = { path: "layers.0.attn", head: 0, value: null };
  const own = attributed({ schema: 1, run: "", step: 0, row: 0, id: 0, path: "logits", value: 1, total: null, parts: [part], rest: [] });
  expect([own.value, own.total, total(own.parts)]).toEqual([1, NaN, NaN]);
});

it("an axis may be made of axes, one of them a sum", () => {
  expect(axes({ dims: "(H (K+W)) C" })).toEqual(["(H (K+W))", "C"]);
  expect(axes({ dims: "B T K+R" })).toEqual(["B", "T", "K+R"]);
});

describe("sweeps", () => {
  const document = { schema: 1 as const, model: "m", metric: "x", base: 1, clean: 5, paths: ["a", "b"], by: ["H", "T"], shape: [2, 2, 3], pieces: ["x", "y", "z"], values: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, null, -11] };
  it("has a row for each tensor and each index of the outer axes", () => {
    expect(sweeps.rows(document)).toEqual([
      { path: "a", at: [0], values: [1, 2, 3] }, { path: "a", at: [1], values: [4, 5, 6] }, { path: "b", at: [0], values: [7, 8, 9] }, { path: "b", at: [1], values: [10, null, -11] },
    ]);
    expect(sweeps.rows({ ...document, by: ["T"], shape: [2, 6] }).map((r) => r.at)).toEqual([[], []]);
    expect(sweeps.rows({ ...document, paths: ["a"], by: ["H", "K", "T"], shape: [1, 2, 3, 2] }).map((r) => r.at)).toEqual([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
  });
  it("addresses a cell by the axes of its tensor", () => {
    expect(sweeps.index(["B", "T", "H", "K"], ["H", "T"], [3, 4])).toBe(":,4,3,:");
  });
  it("tells how far a number is from the base", () => {
    expect([1, -11, null, 7].map((x) => sweeps.far(document, x))).toEqual([0, -1, 0, 0.5]);
  });
  it("is read from a link only if it is sound", () => {
    const own = { clean: "p", over: "layers.*.out", by: "T", words: [" a", " b"] as [string, string] };
    expect(sweeps.read(sweeps.written(own))).toEqual(own);
    for (const text of ["", "x", "[]", '["p","layers.*.out","t","",""]', '["","a","T","",""]', '["p","a","T","b",""]', '["p",1,"T","",""]']) expect(sweeps.read(text)).toBeUndefined();
  });
});

it("names of queries, keys and values are known in a formula", () => {
  const signs = (text: string): string => lettered(text).filter((p) => p.letter).map((p) => `${p.letter}:${p.text}`).join(" ");
  expect(lettered("q_rot·k_rotᵀ / √32").map((p) => p.text).join("")).toBe("q_rot·k_rotᵀ / √32");
  expect(signs("(q[:K]·kᵀ + q_rot·k_sharedᵀ) / √24")).toBe("q:q k:k q:q_rot k:k_shared");
  expect(signs("attn_norm · W_qᵀ + b_q")).toBe("q:W_q q:b_q");
  expect(signs("latent · W_kv_b[K:]ᵀ")).toBe("k:latent k:W_kv_b");
  expect(signs("pattern · v")).toBe("v:v");
  expect(signs("top_k(logits, 50) + silu(gate) · up + mask")).toBe("");
  expect(["q_norm", "k", "kv_a", "v", "latent", "keys", "quiet", "vocabulary"].map(letter)).toEqual(["q", "k", "k", "v", "k", undefined, undefined, undefined]);
});
