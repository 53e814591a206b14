// A logit with a head or a part switched off: the model runs again on the same tokens with zeros in its place.

import { start, stats } from "./api";
import type { Edit } from "./edits";
import { changeText } from "./edits";
import { recorded } from "./recorded";
import { slice } from "./slices";
import { axes, type Run, type Tensor } from "./types";

// Whether a step can be run again as it was: later ones of a model that reads its prompt otherwise than what it wrote cannot.
export const repeatable = (run: Run, step: number): boolean => recorded === null && run.values && (step === 0 || run.kind === "decoder");

// The change that switches off one head of an attention, or a part as a whole where it has no heads.
export function off(tensors: readonly Tensor[], path: string, head: number | null): Edit | undefined {
  const t = tensors.find((s) => s.path === (head === null ? path : `${path}.z`));
  return t && { path: t.path, at: axes(t).map((a) => (a === "H" && head !== null ? String(head) : ":")).join(), how: "to", value: "0" };
}

// A token's number in one row (-1: the last) of a tensor that ends in the vocabulary.
async function cell(run: string, t: Tensor, row: number, id: number): Promise<number> {
  const at = axes(t).map((a, i) => (a === "V" ? id : a === "T" ? (row < 0 ? (t.shape[i] ?? 1) - 1 : row) : 0));
  return Number((await slice(run, t.n, at.join())).values[0]);
}

// scored: the path of the numbers that are compared, the logits or what a soft cap limits.
export async function without(run: Run, step: number, row: number, id: number, scored: string, edit: Edit): Promise<number> {
  const other = await start(run.model, `#${[...run.ids, ...run.new.slice(0, step)].join(" ")}`, 1, "", run.switches, [changeText(edit)]);
  const t = other.tensors.findLast((s) => s.path === scored);
  const value = t ? await cell(other.run, t, row, id) : NaN;
  await stats(run.run, run.tensors[0]?.n ?? 0); // the server drops the run that was used longest ago: not this one
  return value;
}
