// Experts in groups: which groups a token's experts may come from.

import type { Routing } from "./types";

export interface ExpertGroup { first: number; size: number; score: number; stays: boolean }

// Equal groups of neighbours, by what experts are ranked by: a group is as good as the sum of its best few, and the best groups stay.
export function grouped(ranked: readonly number[], { groups, groups_chosen, group_best }: Routing): ExpertGroup[] {
  const size = ranked.length / groups;
  const scores = Array.from({ length: groups }, (_, g) =>
    ranked.slice(g * size, (g + 1) * size).sort((a, b) => b - a).slice(0, group_best).reduce((sum, x) => Math.fround(sum + x), 0));
  const best = new Set(scores.map((_, g) => g).sort((a, b) => (scores[b] ?? 0) - (scores[a] ?? 0) || a - b).slice(0, groups_chosen));
  return scores.map((score, g) => ({ first: g * size, size, score, stays: best.has(g) }));
}
