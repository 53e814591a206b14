// The model that a page in one file carries: what Python wrote beside its weights and kernels (src/pellucid/html/live.py).

import type { Tensor } from "../run/types";
import { recorded } from "../run/recorded";
import type { Chunk } from "./fetched";
import type { PlanDocument } from "./plan";
import type { Vocabulary } from "./tokenizer";

// A tensor of a step, but for what depends on its rows: "T" of them, after which "S" keys are stored, "N" that went to experts, and FLOPs
// [b, c] of b·T + c·T·S.  labels: of its cells' terms.  first: fields that are others in a run's first step, where "{prompt}" stands for the
// length of the prompt.
export interface StepTensor extends Omit<Tensor, "n" | "shape" | "step" | "bytes" | "flops" | "error" | "stats" | "min" | "mean" | "max" | "rows"> { shape: (number | "T" | "S" | "N")[]; flops: [number, number] | null; labels: Record<string, string>; first: Partial<Tensor> }

// A token that a text may name: the white space before it, or behind it, belongs to it.
export interface ControlToken { id: number; content: string; lstrip: boolean; rstrip: boolean }

export interface LiveDocument extends Vocabulary {
  schema: 1;
  language: "en" | "zh";
  model: string;
  quant: string | null; // the format of weights in blocks
  longest: number; // tokens of a text
  restarts: number[]; // tokens beyond which a text is read again from its first one, under other rotary frequencies
  candidates: number; // of a step
  stops: number[]; // tokens that end a text
  starts: number | null; // the token that a decoder beside an encoder begins with
  control: { tokens: ControlToken[]; mask: number | null } | null; // of an encoder, whose text may name them
  run: Record<string, unknown>; // the fields of a run's document that every run has alike
  tensors: StepTensor[];
  plan: PlanDocument;
  sha256: { weights?: string; kernels: string };
  chunks?: Chunk[]; // the files beside the page that hold the weights, if it does not
  memory: { runs: number; weights: number }; // bytes that may be kept: of runs' tensors, and of weights as numbers
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
// True in a notebook's output: a frame without an address.
export const framed = typeof location !== "undefined" && location.protocol === "about:";
