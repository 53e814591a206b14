// The logits that an answer was taken from: one row of the step's logits, whole and exact.

import { slice } from "./slices";
import { axes, type Answer, type Tensor } from "./types";
import type { Values } from "../tensor/decode";

export async function lastLogits(run: string, tensors: readonly Tensor[], answer: Answer): Promise<{ values: Values; tensor: Tensor; row: number } | undefined> {
  const tensor = tensors.findLast((t) => t.path === "logits");
  if (!tensor) return undefined;
  const names = axes(tensor), time = names.indexOf("T"), row = answer.row < 0 ? (tensor.shape[time] ?? 1) - 1 : answer.row;
  const { values } = await slice(run, tensor.n, names.map((a, i) => (a === "V" ? ":" : i === time ? row : 0)).join());
  return { values, tensor, row };
}
