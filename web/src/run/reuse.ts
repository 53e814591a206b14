// The rows of a run's cache that serve another prompt: the engine's answer, and the rows of both runs beside each other.

import { axes, type Tensor } from "./types";
import { apart } from "./slices";

// Of what one attention keeps: of each row the largest difference between two runs, as far as both have rows.
export async function rowsApart(run: string, other: string, mine: readonly Tensor[], theirs: readonly Tensor[]): Promise<number[]> {
  const pairs = mine.flatMap((t) => { const o = theirs.find((s) => s.path === t.path && s.step === t.step); return o ? [[t, o] as const] : []; });
  const all = await Promise.all(pairs.map(async ([t, o]) => {
    const rows = Math.min(t.shape[1] ?? 0, o.shape[1] ?? 0), many = axes(t).length > 3;
    return (await apart(run, t.n, other, o.n, `0,0:${rows},${axes(t).slice(2).map(() => ":").join()}`, many ? "30" : "0,30")).values;
  }));
  return Array.from(all[0] ?? [], (_, i) => Math.max(...all.map((v) => Math.abs(v[i] ?? NaN))));
}
