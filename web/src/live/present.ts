// The model that a page in one file carries: what Python wrote beside its weights and kernels (src/pellucid/html/live.py).

import type { Tensor } from "../run/types";
import { recorded } from "../run/recorded";
import type { PlanDocument } from "./plan";

// A tensor of a step, but for what depends on its rows: "T" of them, after which "S" keys are stored, and FLOPs [a, b, c] of a + b·T + c·T·S.
// labels: of its cells' terms.
export interface StepTensor extends Omit<Tensor, "n" | "shape" | "step" | "bytes" | "flops" | "error" | "stats" | "min" | "mean" | "max"> { shape: (number | "T" | "S")[]; flops: [number, number, number] | null; labels: Record<string, string> }

export interface LiveDocument {
  schema: 1;
  language: "en" | "zh";
  model: string;
  longest: number; // tokens of a text
  candidates: number; // of a step
  stops: number[]; // tokens that end a text
  special: string[]; // of the pieces, those that stand for themselves
  pieces: (string | null)[]; // by id; each letter is a byte
  merges: string[]; // two pieces with a space between them, the first to be joined first
  run: Record<string, unknown>; // the fields of a run's document that every run has alike
  tensors: StepTensor[];
  plan: PlanDocument;
  sha256: { weights: string; kernels: string };
  answers: Record<string, unknown>; // the server's, by the page's requests, that no run changes
}

const inside = (id: string): string | null => (typeof document === "undefined" ? null : (document.getElementById(id)?.textContent ?? null));

export const embedded: LiveDocument | null = (() => {
  const text = inside("live");
  return text ? (JSON.parse(text) as LiveDocument) : null;
})();

// The bytes of "weights" or "kernels", in base64.
export const carried = (id: keyof LiveDocument["sha256"]): string => inside(id) ?? "";

// True if a server answers; without one the page shows what its file holds, or computes.
export const served = recorded === null && embedded === null;
