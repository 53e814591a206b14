// What view Next token shows of a setting: the stages' numbers for the few tokens of its table, and sums over the whole vocabulary.
// A worker computes it (sampler.svelte.ts), so that a slider never waits for 152,000 numbers; these are the engine's, of stages.ts.

import { CUT, descending, drawToken, powers, probabilities, ranking, stages, type DrawnToken, type History, type Name, type Sampling } from "./stages";

// values: of each token of the table. shown: the same, but for a temperature, where it is the plain quotient.
export interface ShownStage { name: Name; kept: number; values: number[]; shown: number[] }

// The chances before the cuts, added up from the likeliest down. ranks: those that are drawn, of `size`; sums: the share up to each; kept: up to the last that is kept.
export interface Cumulative { size: number; ranks: number[]; sums: number[]; kept: number }

export interface Sampled {
  setting: Sampling;
  finite: number; // logits that are numbers
  ids: number[]; // of the table
  stages: ShownStage[];
  taken: DrawnToken;
  exponent: number; // of the token that is taken, before the cuts, and the greatest
  top: number;
  probability: number;
  shifted: boolean; // the sampler subtracts the greatest logit before it divides
  curve: Cumulative | null; // null where nothing is drawn
}

export interface Logits { values: Float64Array; wide: boolean; history: History }

const ROWS = 20, CLOSE = 200; // of the table; of the likeliest, among which it is filled
const POINTS = 470; // of the curve

export function sampled({ values, wide, history }: Logits, setting: Sampling): Sampled {
  const staged = stages(values, setting, history, wide), taken = drawToken(staged, setting, history.output.length);
  // At temperature 0 nothing is drawn; the probabilities are shown all the same.
  const made = setting.temperature === 0 ? [...staged, probabilities(staged.at(-1)?.values ?? new Float64Array())] : staged;
  const last = made.at(-1)?.values ?? new Float64Array(), order = ranking(values), ranks = descending(made);
  const best = [...order.subarray(0, CLOSE)].sort((a, b) => (last[b] ?? 0) - (last[a] ?? 0)).slice(0, ROWS); // of equals the likelier first
  const ids = best.includes(taken.id) ? best : [...best.slice(0, ROWS - 1), taken.id];
  const undivided = made[made.findIndex((m) => m.name === "temperature") - 1];
  const before = made.findLast((m) => !CUT.has(m.name) && m.name !== "probabilities");
  const at = (name: Name, x: Float64Array, id: number): number => (name === "temperature" && undivided ? (undivided.values[id] ?? NaN) / setting.temperature : (x[id] ?? NaN));
  return {
    setting, finite: order.length, ids, taken,
    stages: made.map((m) => ({ name: m.name, kept: m.kept, values: ids.map((id) => m.values[id] ?? NaN), shown: ids.map((id) => at(m.name, m.values, id)) })),
    exponent: before ? at(before.name, before.values, taken.id) : NaN, top: before ? at(before.name, before.values, ranks[0] ?? 0) : NaN, probability: last[taken.id] ?? NaN, shifted: undivided !== undefined,
    curve: before ? cumulative(before.values, ranks, made.at(-1)?.kept ?? 0) : null,
  };
}

// The ranks are POINTS, evenly apart on a logarithmic axis; of a smaller vocabulary all.
function cumulative(x: Float64Array, order: Uint32Array, kept: number): Cumulative {
  const { values, total } = powers(x), size = order.length, ratio = Math.max(2, size) ** (1 / POINTS), ranks: number[] = [], sums: number[] = [];
  let sum = 0, most = 1, next = 1;
  for (let i = 0; i < size; i++) {
    sum += values[order[i] ?? 0] ?? 0;
    if (i + 1 === next || i + 1 === size) {
      ranks.push(i + 1);
      sums.push(sum / total);
      next = Math.max(next + 1, Math.ceil(next * ratio));
    }
    if (i + 1 === kept) most = sum / total;
  }
  return { size, ranks, sums, kept: most };
}
