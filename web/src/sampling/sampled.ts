// What view Next token shows of a setting: the stages' numbers for the few tokens of its table, and sums over the whole vocabulary.
// A worker computes it (sampler.svelte.ts), so that a slider never waits for 152,000 numbers; these are the engine's, of stages.ts.

import { CUT, cumulated, descending, drawToken, powers, probabilities, ranking, stages, type DrawnToken, type History, type Name, type Sampling, type Stage } from "./stages";

// values: of each token of the table. shown: the same, but for a temperature, where it is the plain quotient.
export interface ShownStage { name: Name; kept: number; values: number[]; shown: number[] }

// The chances before the cuts, added up from the likeliest down. ranks: those that are drawn, of `size`; sums: the share up to each.
export interface Cumulative { size: number; ranks: number[]; sums: number[] }

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
  mass: number; // the share of as many of the likeliest as the cuts keep
}

export interface Logits { values: Float64Array; wide: boolean; history: History }

const ROWS = 20, CLOSE = 200; // of the table; of the likeliest, among which it is filled
const POINTS = 470; // of the curve

export function sampled({ values, wide, history }: Logits, setting: Sampling): Sampled {
  const staged = stages(values, setting, history, wide), taken = drawToken(staged, setting, history.output.length);
  // At temperature 0 nothing is drawn; the probabilities are shown all the same.
  const made = setting.temperature === 0 ? [...staged, probabilities(staged.at(-1)?.values ?? new Float64Array())] : staged;
  const last = made.at(-1), order = ranking(values), ranks = descending(made);
  const close = Array.from(order.subarray(0, CLOSE), (id) => ({ id, x: last?.at(id) ?? 0 })).sort((a, b) => b.x - a.x); // of equals the likelier first
  const best = close.slice(0, ROWS).map(({ id }) => id), ids = best.includes(taken.id) ? best : [...best.slice(0, ROWS - 1), taken.id];
  const undivided = made[made.findIndex((m) => m.name === "temperature") - 1];
  const before = made.findLast((m) => !CUT.has(m.name) && m.name !== "probabilities");
  const at = (m: Stage, id: number): number => (m.name === "temperature" && undivided ? undivided.at(id) / setting.temperature : m.at(id));
  return {
    setting, finite: order.length, ids, taken,
    stages: made.map((m) => ({ name: m.name, kept: m.kept, values: ids.map((id) => m.at(id)), shown: ids.map((id) => at(m, id)) })),
    exponent: before ? at(before, taken.id) : NaN, top: before ? at(before, ranks[0] ?? 0) : NaN, probability: last?.at(taken.id) ?? NaN, shifted: undivided !== undefined,
    curve: before ? curveOf(before.values, ranks) : null, mass: before ? upTo(before.values, ranks, last?.kept ?? 0) : 1,
  };
}

// The share of the likeliest `kept` of an order; 1 if there are no more.
function upTo(x: Float64Array, order: Uint32Array, kept: number): number {
  return kept > 0 && kept <= order.length ? (cumulated(x, order)[kept - 1] ?? 0) / powers(x).total : 1;
}

const CURVES = new WeakMap<Float64Array, Cumulative>();

// The ranks are POINTS, evenly apart on a logarithmic axis; of a smaller vocabulary all. A cut leaves the curve as it is: the same object.
function curveOf(x: Float64Array, order: Uint32Array): Cumulative {
  const known = CURVES.get(x);
  if (known) return known;
  const sums = cumulated(x, order), { total } = powers(x), size = order.length, ratio = Math.max(2, size) ** (1 / POINTS), ranks: number[] = [];
  for (let rank = 1; rank < size; rank = Math.max(rank + 1, Math.ceil(rank * ratio))) ranks.push(rank);
  if (size > 0) ranks.push(size);
  const made = { size, ranks, sums: ranks.map((rank) => (sums[rank - 1] ?? 0) / total) };
  CURVES.set(x, made);
  return made;
}
