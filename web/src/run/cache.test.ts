import { expect, test } from "vitest";
import { cacheSteps, keptBytes, kept, named, readRows } from "./cache";
import type { Tensor } from "./types";

const tensor = (path: string, dims: string, shape: number[], settings: object = {}, inputs: string[] = []): Tensor =>
  ({ path, dims, shape, bytes: 4 * shape.reduce((n, x) => n * x, 1), settings, inputs, flops: 0 }) as unknown as Tensor;

// One block of each kind, over T rows: rows of 2 groups of 8, a convolution of the last 3 rows, a state of 4 heads of 8 × 16.
const run = (T: number): Tensor[] => [
  tensor("layers.0.attn.k_rot", "B T G K", [1, T, 2, 8]), tensor("layers.0.attn.v", "B T G K", [1, T, 2, 8]),
  tensor("layers.1.conv.gated", "B T D", [1, T, 32]), tensor("layers.1.conv.z", "B T D", [1, T, 32], { rows: 3 }),
  tensor("layers.2.delta.q", "B T G K", [1, T, 2, 8]), tensor("layers.2.delta.k", "B T G K", [1, T, 2, 8]), tensor("layers.2.delta.v", "B T H W", [1, T, 4, 16]),
  tensor("layers.2.delta.z", "B T H W", [1, T, 4, 16]), tensor("layers.2.delta.q_sum", "B T G K", [1, T, 2, 8], { rows: 4 }), tensor("layers.2.delta.q_even", "B T G K", [1, T, 2, 8]),
  tensor("layers.2.delta.decay", "B T H", [1, T, 4]), tensor("layers.2.delta.y", "B T H W", [1, T, 4, 16], {}, ["layers.2.delta.q_even"]),
];

// Mamba-2, of 6 heads of 8 × 4 in 2 groups, over a convolution of the last 3 rows.
const mamba = (T: number): Tensor[] => [
  tensor("layers.3.mamba.x", "B T H W", [1, T, 6, 4]), tensor("layers.3.mamba.b", "B T G K", [1, T, 2, 8]), tensor("layers.3.mamba.c", "B T G K", [1, T, 2, 8]),
  tensor("layers.3.mamba.x_sum", "B T H W", [1, T, 6, 4], { rows: 3 }), tensor("layers.3.mamba.b_sum", "B T G K", [1, T, 2, 8]), tensor("layers.3.mamba.c_sum", "B T G K", [1, T, 2, 8]),
  tensor("layers.3.mamba.c_act", "B T G K", [1, T, 2, 8]), tensor("layers.3.mamba.z", "B T H W", [1, T, 6, 4]),
  tensor("layers.3.mamba.decay", "B T H", [1, T, 6]), tensor("layers.3.mamba.y", "B T H W", [1, T, 6, 4], {}, ["layers.3.mamba.c_act", "layers.3.mamba.b_act"]),
];

// Mamba-1, of 12 channels of 8 numbers, over a convolution of the last 3 rows: b and c are made of its sums, and not stored.
const selective = (T: number): Tensor[] => [
  tensor("layers.4.mamba.x", "B T H W", [1, T, 1, 12]), tensor("layers.4.mamba.x_sum", "B T H W", [1, T, 1, 12], { rows: 3 }),
  tensor("layers.4.mamba.b", "B T K", [1, T, 8]), tensor("layers.4.mamba.c", "B T K", [1, T, 8]), tensor("layers.4.mamba.z", "B T H W", [1, T, 1, 12]),
  tensor("layers.4.mamba.decay", "B T K W", [1, T, 8, 12]), tensor("layers.4.mamba.y", "B T H W", [1, T, 1, 12], {}, ["layers.4.mamba.c", "layers.4.mamba.b"]),
];

test("a window or a chunk of attention keeps its last rows", () => {
  for (const [window, chunk, most] of [[null, null, 10], [4, null, 4], [null, 3, 3], [12, null, 10]] as const) {
    const masks = { "layers.0.attn": { window, chunk } }, [own] = kept(run(10), masks);
    expect(own && keptBytes(own, 10)).toBe(most * 32 * 4);
    expect(cacheSteps([{ step: 0, fed: Array(10).fill(0), past: 0 }] as never, { 0: run(10).slice(0, 2) }, masks)[0]?.total).toBe(most * 32 * 4);
  }
});

test("attention keeps all rows, a convolution its last ones, a delta rule those and one state", () => {
  const parts = kept(run(10));
  expect(parts.map((k) => k.part)).toEqual(["layers.0.attn", "layers.1.conv", "layers.2.delta"]);
  expect(parts.map((k) => keptBytes(k, 10))).toEqual([10 * 32 * 4, 3 * 32 * 4, 4 * (2 * 16 + 64) * 4 + 4 * 8 * 16 * 4]);
  expect(parts.map((k) => keptBytes(k, 2))).toEqual([2 * 32 * 4, 2 * 32 * 4, 2 * (2 * 16 + 64) * 4 + 4 * 8 * 16 * 4]);
});

test("Mamba-2 keeps the rows of its convolutions and one state", () => {
  const [own] = kept(mamba(10)), row = (6 * 4 + 2 * 2 * 8) * 4, state = 6 * 8 * 4 * 4;
  expect([own?.part, own?.tensors.length, own?.state]).toEqual(["layers.3.mamba", 3, state]);
  expect([10, 2].map((rows) => own && keptBytes(own, rows))).toEqual([3 * row + state, 2 * row + state]);
});

test("Mamba-1 keeps the rows of x and a few numbers of each channel", () => {
  const [own] = kept(selective(10)), row = 12 * 4, state = 12 * 8 * 4;
  expect([own?.part, own?.tensors.map((t) => t.path), own?.state]).toEqual(["layers.4.mamba", ["layers.4.mamba.x"], state]);
  expect([10, 2].map((rows) => own && keptBytes(own, rows))).toEqual([3 * row + state, 2 * row + state]);
});

test("a step adds what the cache has more", () => {
  const steps = cacheSteps([{ step: 0, fed: Array(10).fill(0), past: 0 }, { step: 1, fed: [0], past: 10 }] as never, { 0: run(10), 1: run(1) });
  expect(steps.map((s) => s.bytes)).toEqual([10 * 128 + 384 + 1536 + 2048, 128]);
  expect(steps[1]?.total).toBe(11 * 128 + 384 + 1536 + 2048);
});

test("what is kept has its own names, and a step reads the rows that some part still keeps", () => {
  const names = (tensors: Tensor[]): string[] => named(kept(tensors)).map(([key]) => key.replace("page.cache.of.", ""));
  expect([names(run(10)), names(mamba(10)), names(run(10).slice(2, 4)), names(run(10).slice(0, 2))]).toEqual([["keys", "states", "rows"], ["states", "rows"], ["rows"], ["keys"]]);
  expect(names([tensor("layers.0.attn.latent", "B T C", [1, 4, 8]), tensor("layers.0.attn.k_shared", "B T R", [1, 4, 2])])).toEqual(["latents"]);
  const sparse = ["attn.latent", "attn.k_shared", "attn.indexer.q_rot", "attn.indexer.k_rot"].map((name, i) => tensor(`layers.0.${name}`, "B T C", [1, 4, 2 + i]));
  expect([names(sparse), kept(sparse).map((k) => keptBytes(k, 4))]).toEqual([["latents", "indexes"], [4 * 5 * 4, 4 * 5 * 4]]);
  expect([run(10), mamba(10), run(10).slice(2, 4)].map((tensors) => [0, 2, 9].map((before) => readRows(kept(tensors), before)))).toEqual([[0, 2, 9], [0, 2, 2], [0, 2, 2]]);
});
