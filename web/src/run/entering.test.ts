import { expect, it } from "vitest";
import { entering, positions, rowOf } from "./entering";
import type { Run, Tensor } from "./types";

let n = 0;
const tensor = (path: string, result: string | null, inputs: string[], more: Partial<Tensor> = {}): Tensor =>
  ({ n: n++, path, result, inputs, dims: "B T D", shape: [1, 3, 4], weights: [], notes: [], settings: {}, ...more }) as unknown as Tensor;
const shown = (all: readonly Tensor[], stack = ""): string => entering(all, stack).map((e) => `${e.sign} ${e.tensor.path}`).join(", ");

const MASKED = [
  tensor("embed", "embedding", []), tensor("positions", "embedding", []), tensor("start", "sum", ["embed", "positions"]), tensor("types", "embedding", []), tensor("typed", "sum", ["start", "types"]),
  tensor("embed_norm", "norm", ["typed"]), tensor("layers.0.attn.q", "product", ["embed_norm"]), tensor("layers.0.out", "sum", ["embed_norm", "layers.0.attn.q"]), tensor("norm", "norm", ["layers.0.out"]),
];
const TURNED = [tensor("embed", "embedding", []), tensor("layers.0.attn_norm", "norm", ["embed"]), tensor("layers.0.attn.q_rot", "rotation", ["layers.0.attn_norm"])];
const TWO_STACKS = [
  tensor("source", "embedding", []), tensor("encoder.layers.0.attn_norm", "norm", ["source"]), tensor("encoder.layers.0.attn.scores", "scores", ["encoder.layers.0.attn_norm"], { weights: ["encoder.layers.0.attn.relative.weight"] }),
  tensor("embed", "embedding", []), tensor("decoder.scaled", null, ["embed"]), tensor("decoder.layers.0.attn_norm", "norm", ["decoder.scaled"]),
];

it("a token enters by what ran before the first block, in order", () => {
  expect(shown(MASKED)).toBe("row embed, plus positions, equals start, plus types, equals typed, becomes embed_norm");
  expect(shown(TURNED)).toBe("row embed");
  expect(shown(TWO_STACKS, "encoder")).toBe("row source");
  expect(shown(TWO_STACKS, "decoder")).toBe("row embed, becomes decoder.scaled");
});

it("positions come in where the tensors say so", () => {
  expect(positions(MASKED, "")).toEqual(["added"]);
  expect(positions(TURNED, "")).toEqual(["turned"]);
  expect(positions(TWO_STACKS, "encoder")).toEqual(["distances"]);
  expect(positions(TWO_STACKS, "decoder")).toEqual(["none"]);
  expect(positions(MASKED.map((t) => (t.path === "positions" ? { ...t, result: null } : t)), "")).toEqual(["waves"]);
  expect(positions([TURNED[0] as Tensor, tensor("layers.0.attn.scores", "scores", ["embed"], { notes: [["slopes", {}]] as unknown as Tensor["notes"] })], "")).toEqual(["slopes"]);
});

it("a token's row is of the step that computed it", () => {
  const run = { kind: "decoder", ids: [7, 8, 9], steps: [{ step: 0, past: 0, fed: [7, 8, 9] }, { step: 1, past: 3, fed: [5] }] } as unknown as Run;
  expect(rowOf(run, "", 2, 1)).toEqual({ step: 0, row: 2, id: 9 });
  expect(rowOf(run, "", 3, 1)).toEqual({ step: 1, row: 0, id: 5 });
  expect(rowOf({ ...run, kind: "encoder" }, "", 1, 1)).toEqual({ step: 1, row: 1, id: 8 }); // it reads the text again
  expect(rowOf({ ...run, kind: "encoder-decoder" }, "encoder", 1, 1)).toEqual({ step: 0, row: 1, id: 8 });
});
