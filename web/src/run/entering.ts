// How a token becomes a row of the residual stream: what is taken out of tables, added, scaled or normed before the first block, in the
// order in which it ran; and how positions come in, here or later.

import { split, stackOf } from "./river";
import { makers } from "./sources";
import { axes, type Run, type Tensor } from "./types";

// row: taken out of a table or made for a position; plus: the same, and added; equals: the sum; becomes: what a scale, a norm or a product makes.
export type Sign = "row" | "plus" | "equals" | "becomes";
export interface Entry { sign: Sign; tensor: Tensor }
// added: a learned row for each position; waves: a computed one; turned: RoPE; distances: a learned table added to scores; slopes: ALiBi.
export type Positions = "added" | "waves" | "turned" | "distances" | "slopes" | "none";

const of = (tensors: readonly Tensor[], stack: string): Tensor[] => tensors.filter((t) => split(t.path)[0] !== "" && stackOf(t.path) === stack);

export function entering(tensors: readonly Tensor[], stack: string): Entry[] {
  const at = new Map(tensors.map((t) => [t.path, t])), block = split(of(tensors, stack)[0]?.path ?? "")[0], reached = new Set<Tensor>();
  const visit = (path: string): void => {
    const t = at.get(path);
    if (!t || reached.has(t) || split(path)[0] !== "") return;
    reached.add(t);
    makers(t, tensors).forEach(visit);
  };
  const first = of(tensors, stack).filter((t) => split(t.path)[0] === block).flatMap((t) => makers(t, tensors)).find((path) => split(path)[0] === "");
  if (first) visit(first);
  return [...reached].sort((a, b) => a.n - b.n).map((tensor, i) => ({ tensor, sign: tensor.inputs.length === 0 ? (i === 0 ? "row" : "plus") : tensor.result === "sum" ? "equals" : "becomes" }));
}

export function positions(tensors: readonly Tensor[], stack: string): Positions[] {
  const own = of(tensors, stack), rows = entering(tensors, stack).find((e) => e.tensor.path.split(".").at(-1) === "positions");
  const kinds: [Positions, boolean][] = [
    ["added", rows?.tensor.result === "embedding"],
    ["waves", rows !== undefined && rows.tensor.result !== "embedding"],
    ["turned", own.some((t) => t.result === "rotation")],
    ["distances", own.some((t) => t.result === "scores" && t.weights.some((w) => /\.relative\./.test(w)))],
    ["slopes", own.some((t) => t.notes.some(([key]) => key === "slopes"))],
  ];
  const all = kinds.filter(([, is]) => is).map(([kind]) => kind);
  return all.length > 0 ? all : ["none"];
}

// The row of a stack's token: the step that computed it last, its row there and its id. step: the last that counts.
export function rowOf(run: Pick<Run, "steps" | "ids" | "kind">, stack: string, position: number, step: number): { step: number; row: number; id: number | undefined } {
  if (stack === "encoder" || run.kind === "encoder") return { step: stack === "encoder" ? 0 : step, row: position, id: run.ids[position] };
  for (const s of run.steps.slice(0, step + 1).reverse()) {
    const row = position - s.past;
    if (row >= 0 && row < s.fed.length) return { step: s.step, row, id: s.fed[row] };
  }
  return { step: 0, row: position, id: run.ids[position] };
}

// The index of one row of a tensor, all of its channels, as a slice has it.
export const sliceOf = (t: Tensor, row: number): string => axes(t).map((a) => (a === "B" ? 0 : a === "T" || a === "S" ? row : ":")).join();
