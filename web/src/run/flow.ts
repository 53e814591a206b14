// Which of the drawn tensors were made from which. One that is not drawn, in a folded block, is gone through to what it was made from.

import { makers } from "./sources";
import type { Tensor } from "./types";

export interface Flow { from: string; to: string; folded: boolean } // folded: true if the line replaces tensors that are not drawn

export function flows(tensors: readonly Tensor[], drawn: ReadonlySet<string>): Flow[] {
  const made = new Map(tensors.map((t) => [t.path, t])), ends = new Map<string, readonly string[]>();
  // The nearest drawn tensors that one was made from.
  const back = (path: string): readonly string[] => {
    if (drawn.has(path)) return [path];
    const known = ends.get(path), t = made.get(path);
    if (known || !t) return known ?? [];
    ends.set(path, []);
    const starts = [...new Set(makers(t, tensors).flatMap(back))];
    ends.set(path, starts);
    return starts;
  };
  return tensors.filter((t) => drawn.has(t.path)).flatMap((t) => {
    const direct = makers(t, tensors), through = new Set(direct.filter((p) => !drawn.has(p)).flatMap(back));
    return [...direct.filter((p) => drawn.has(p)).map((from) => ({ from, to: t.path, folded: false })), ...[...through].filter((p) => !direct.includes(p)).map((from) => ({ from, to: t.path, folded: true }))];
  });
}
