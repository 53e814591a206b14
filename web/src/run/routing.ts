// A block's routing, from its tensors: scores by expert (axis E), and the chosen experts with their shares (axis A).

import { split } from "./river";
import { slice } from "./slices";
import { axes, type Tensor } from "./types";

export interface Router { block: string; part: string; scores: Tensor[]; chosen: Tensor; share: Tensor | undefined; experts: number }

// A router is where something is chosen: whole numbers by token and choice, beside scores by expert.
export function routers(tensors: readonly Tensor[]): Router[] {
  return tensors.filter((t) => axes(t).at(-1) === "A" && t.dtype.startsWith("int")).flatMap((chosen) => {
    const part = chosen.path.slice(0, chosen.path.lastIndexOf("."));
    const own = tensors.filter((t) => t.path.startsWith(`${part}.`) && t.step === chosen.step), scores = own.filter((t) => axes(t).at(-1) === "E");
    const share = own.find((t) => axes(t).at(-1) === "A" && t !== chosen), experts = scores[0]?.shape.at(-1) ?? 0;
    return experts > 0 ? [{ block: split(chosen.path)[0], part, scores, chosen, share, experts }] : [];
  });
}

export interface Routes { tokens: number; chosen: number[][]; shares: number[][] }

export async function routes(run: string, router: Router): Promise<Routes> {
  const all = (t: Tensor) => slice(run, t.n, axes(t).map((a) => (a === "B" ? "0" : ":")).join());
  const [chosen, share] = await Promise.all([all(router.chosen), router.share ? all(router.share) : undefined]);
  const [tokens, each] = [chosen.shape[0] ?? 0, chosen.shape[1] ?? 0];
  const rows = (values: ArrayLike<number> | undefined): number[][] => Array.from({ length: tokens }, (_, t) => Array.from({ length: each }, (_, a) => values?.[t * each + a] ?? NaN));
  return { tokens, chosen: rows(chosen.values), shares: rows(share?.values) };
}

// The number of tokens of each expert.
export function load({ chosen }: Routes, experts: number): number[] {
  const counts = Array<number>(experts).fill(0);
  for (const row of chosen) for (const e of row) if (counts[e] !== undefined) counts[e] += 1;
  return counts;
}
