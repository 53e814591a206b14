import { expect, test } from "vitest";
import { preset } from "./sweep";
import type { Tensor } from "./types";

const tensor = (path: string, dims: string, shape: number[]): Tensor => ({ path, dims, shape }) as unknown as Tensor;
const attention = tensor("layers.1.attn.z", "B T H K", [1, 5, 4, 8]), mamba = tensor("layers.0.mamba.y_gated", "B T H W", [1, 5, 1, 64]);
const out = tensor("layers.1.out", "B T D", [1, 5, 32]);

test("a place that the run has is offered, its heads where it has several", () => {
  const offered = (...tensors: Tensor[]): string[] => { const { first, over, by } = preset(tensors); return [first, over, by]; };
  expect(offered(mamba, attention, out)).toEqual(["layers.1.attn.z", "layers.*.attn.z", "H,T"]);
  expect(offered(mamba, out)).toEqual(["layers.0.mamba.y_gated", "layers.*.mamba.y_gated", "T"]);
  expect(offered(tensor("layers.0.delta.y_gated", "B T H W", [1, 5, 2, 8]), out)).toEqual(["layers.0.delta.y_gated", "layers.*.delta.y_gated", "H,T"]);
  expect(offered(tensor("layers.0.conv.y", "B T D", [1, 5, 32]))).toEqual(["layers.0.conv.y", "layers.*.conv.y", "T"]);
  expect(offered(out)).toEqual(["layers.1.out", "layers.*.out", "T"]);
  expect(offered(tensor("encoder.layers.0.attn.z", "B T H K", [1, 5, 4, 8]), tensor("decoder.layers.0.attn.z", "B T H K", [1, 1, 4, 8]))[1]).toBe("decoder.layers.*.attn.z");
  expect(offered()).toEqual(["", "", "T"]);
});
