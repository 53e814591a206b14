// The server's documents of a run; see the server's own description of its API.

import type { AnswerDocument, CandidateDocument, RoutingDocument, RunDocument, RunStepDocument, StatsDocument, TensorDocument } from "./documents";

export type Answer = AnswerDocument;
export type Candidate = CandidateDocument;
export type Routing = RoutingDocument;
export type Run = RunDocument;
export type Stats = StatsDocument;
export type Step = RunStepDocument;
export type Tensor = TensorDocument;

export interface ModelEntry { name: string; kind: string; parameters: number; bytes: number; dtype: string; held: string; weights: boolean; prompt: string | null; examples?: string[]; chat: "template" | "joined" | "last" | null }
// training: the folder of the run of training that the server was opened with.  shipped: the name of the one that it shows without one.
// tokenizer: the tokenizer that it was opened with, alone.
export interface Models { current: string; run: string | null; training?: string | null; shipped?: string | null; tokenizer?: string | null; models: ModelEntry[] }

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

// The sum over tensors; null if none has the number.
export const together = (all: readonly Tensor[], what: "parameters" | "flops"): number | null =>
  all.every((t) => t[what] === null) ? null : all.reduce((n, t) => n + (t[what] ?? 0), 0);
