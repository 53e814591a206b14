// What the server tells of a run; see the server's own description of its API.

import type { Sight } from "../draw/sight";
import type { Sampling } from "../sampling/stages";

export interface Stats { min: number | null; max: number | null; mean: number | null; std: number | null; absmax: number | null; nan: number; inf: number }

export interface Tensor {
  n: number;
  path: string;
  dims: string;
  shape: number[];
  dtype: string;
  step: number;
  call: number;
  source: "executed" | "recomputed" | "reference" | "edited";
  error: number | null;
  op: string | null;
  inputs: string[];
  weights: string[];
  made: string;
  notes: [string, Record<string, string>][]; // what the signs of the formula mean: a word's key after "formula.", and its values
  put: string; // what a cell's numbers are put into
  bytes: number;
  parameters: number | null; // null: the model is not here
  flops: number | null; // null: nobody told
  rows: number[] | null; // of routed rows: which token each is of
  stats: Stats | null; // null: not told with the run; the server measures it when asked
  kept: boolean; // false: the server computes its values anew when they are asked for
  terms: boolean; // whether what its cells are sums of can be told
}

// chosen of the experts of the best groups_chosen groups; a group is as good as the sum of its best group_best. shared: the width of what every token visits.
export interface Routing { experts: number; chosen: number; groups: number; groups_chosen: number; group_best: number; corrected: boolean; shared: number }

export interface Candidate { id: number; piece: string; logit: number | null; probability: number | null }
// What could stand in one place: after the last row (-1), or in a blank, whose row is told.
export interface Answer { row: number; picked: Candidate; candidates: Candidate[] }
export interface Step { step: number; fed: number[]; before: number; first: number; count: number; answers: Answer[] }

export interface Run {
  run: string;
  model: string;
  kind: string | null;
  values: boolean; // false: shapes and counts alone
  prompt: string | null;
  ids: number[];
  pieces: string[];
  new: number[];
  new_pieces: string[];
  ended?: boolean; // whether the last new token is one that ends a text; not there in older files
  sights: Record<string, Sight>; // of each attention: what its queries may see
  routings: Record<string, Routing>; // of each mixture of experts: how it chooses
  sampling: Partial<Sampling>; // how its tokens were drawn; {}: it is not told
  steps: Step[];
  tensors: Tensor[]; // of step 0
}

export interface ModelEntry { name: string; kind: string; parameters: number; bytes: number; dtype: string; held: string; weights: boolean; prompt: string | null }
export interface Models { current: string; run: string | null; models: ModelEntry[] }

export interface Terms {
  factors: Record<string, (number | null)[]>;
  added: Record<string, number | null>;
  numbers: Record<string, number | null>; // that a template is filled with, by the names of the op
  summands: (number | null)[]; // the products of the factors, and after them what is added
  total: number | null;
  count: number;
}

// A weight of the model, as the server lists it.
export interface Weight { path: string; dims: string | null; shape: number[]; dtype: string; count: number; parameter: boolean }

// The axes of a tensor by its label: "B T K+R" has the axes B, T, K+R, a weight's "(H K) D" the axes (H K), D.
export const axes = (t: { dims: string }): string[] => t.dims.match(/\((?:[^()]|\([^()]*\))*\)|\S+/g) ?? [];

// What these tensors come to together; null where it is not known of any.
export const together = (all: readonly Tensor[], what: "parameters" | "flops"): number | null =>
  all.every((t) => t[what] === null) ? null : all.reduce((n, t) => n + (t[what] ?? 0), 0);
