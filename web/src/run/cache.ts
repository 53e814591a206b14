// The KV cache of each attention, from the tensors that ran: rotated keys and values, or a latent and its rotary key.

import { split } from "./river";
import { axes, together, type Step, type Tensor } from "./types";

export interface Kept { block: string; part: string; tensors: Tensor[]; memory: boolean } // memory: kept once, of another text

export function kept(tensors: readonly Tensor[]): Kept[] {
  const parts = new Map<string, Map<string, Tensor>>();
  for (const t of tensors) {
    const at = t.path.lastIndexOf("."), part = t.path.slice(0, at);
    if (/\.(attn|cross)$/.test(`.${part}`)) parts.set(part, (parts.get(part) ?? new Map<string, Tensor>()).set(t.path.slice(at + 1), t));
  }
  const out: Kept[] = [];
  for (const [part, own] of parts) {
    if (part.startsWith("encoder.")) continue;
    const latent = own.get("latent"), names = latent ? ["latent", "k_shared"] : [own.has("k_rot") ? "k_rot" : "k", "v"];
    const all = names.map((n) => own.get(n)).filter((t) => t !== undefined);
    if (all.length > 0) out.push({ block: split(part)[0], part, tensors: all, memory: !axes(all[0] as Tensor).includes("T") });
  }
  return out;
}

export const size = (all: readonly Kept[], memory: boolean): number => all.filter((k) => k.memory === memory).reduce((n, k) => n + k.tensors.reduce((m, t) => m + t.bytes, 0), 0);

export interface CacheStep { step: number; rows: number; before: number; bytes: number; total: number; flops: number | null; tensors: Tensor[] }

// Step by step: the rows that are computed, those read from the cache, and the bytes stored after it.
export function cacheSteps(steps: readonly Pick<Step, "step" | "fed" | "past">[], of: Record<number, Tensor[]>): CacheStep[] {
  let total = 0;
  return steps.filter((s) => of[s.step]).map((s) => {
    const tensors = of[s.step] ?? [], all = kept(tensors), bytes = size(all, false) + (s.step === 0 ? size(all, true) : 0);
    total += bytes;
    return { step: s.step, rows: s.fed.length, before: s.past, bytes, total, flops: together(tensors, "flops"), tensors };
  });
}
