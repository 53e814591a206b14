// What is kept for later tokens, from the tensors that ran: rotated keys and values, or a latent and its rotary key, and an indexer's own keys; a state and last rows.

import type { MaskDocument } from "./documents";
import type { Key } from "../messages";
import { split } from "./river";
import { axes, together, type Step, type Tensor } from "./types";

// what: the kind of what is kept of each row.  memory: kept once, of another text.  most: the rows that are kept at most, the last ones: of a convolution, a window or a chunk.  state: bytes that a text has at any length.
export interface Kept { block: string; part: string; what: "keys" | "latents" | "indexes" | "rows"; tensors: Tensor[]; memory: boolean; most: number; state: number }

// What queries may see, by the path of their attention.
type Masks = Record<string, Pick<MaskDocument, "window" | "chunk">>;

// Of Mamba those that a convolution sums: x alone in Mamba-1.
const NAMES: Record<string, string[]> = { conv: ["gated"], delta: ["q", "k", "v"], mamba: ["x", "b", "c"] };

export function kept(tensors: readonly Tensor[], masks: Masks = {}): Kept[] {
  const parts = new Map<string, Map<string, Tensor>>();
  for (const t of tensors) {
    const at = t.path.lastIndexOf("."), part = t.path.slice(0, at);
    if (/\.(attn|cross|indexer|conv|delta|mamba)$/.test(`.${part}`)) parts.set(part, (parts.get(part) ?? new Map<string, Tensor>()).set(t.path.slice(at + 1), t));
  }
  const out: Kept[] = [];
  for (const [part, own] of parts) {
    if (part.startsWith("encoder.")) continue;
    const latent = own.get("latent"), kind = part.slice(part.lastIndexOf(".") + 1);
    const names = NAMES[kind]?.filter((n) => kind !== "mamba" || own.has(`${n}_sum`)) ?? (kind === "indexer" ? ["k_rot"] : latent ? ["latent", "k_shared"] : [own.has("k_rot") ? "k_rot" : "k", "v"]);
    const all = names.map((n) => own.get(n)).filter((t) => t !== undefined);
    const rows = (own.get("q_sum") ?? own.get("x_sum") ?? own.get("z"))?.settings.rows; // of a convolution
    const most = kind in NAMES ? (typeof rows === "number" ? rows : Infinity) : Math.min(masks[part]?.window ?? Infinity, masks[part]?.chunk ?? Infinity);
    if (all.length > 0) out.push({ block: split(part)[0], part, what: kind in NAMES ? "rows" : kind === "indexer" ? "indexes" : latent ? "latents" : "keys", tensors: all, memory: !axes(all[0] as Tensor).includes("T"), most, state: state(own) });
  }
  return out;
}

// The bytes of the matrices [H K W] that y is read from, one of each head; they have the dtype of the decays.
function state(own: Map<string, Tensor>): number {
  const y = own.get("y"), q = own.get(y?.inputs[0]?.split(".").at(-1) ?? ""), decay = own.get("decay");
  if (!q || !y || !decay) return 0;
  return (q.shape.at(-1) ?? 0) * (y.shape.at(-1) ?? 0) * (y.shape.at(-2) ?? 0) * (decay.bytes / decay.shape.reduce((n, x) => n * x, 1));
}

const size = (k: Kept): number => k.tensors.reduce((n, t) => n + t.bytes, 0);
export const rowBytes = (k: Kept): number => size(k) / (k.tensors[0]?.shape[1] ?? 1);
// The bytes that are kept once `rows` tokens are stored.
export const keptBytes = (k: Kept, rows: number): number => (k.memory ? size(k) : rowBytes(k) * Math.min(k.most, rows) + k.state);

// The names of all that is kept, and the same as what a later step reads of it.
const NAMED: Record<Kept["what"] | "states", [Key, Key]> = {
  keys: ["page.cache.of.keys", "page.cache.of.keys.read"], latents: ["page.cache.of.latents", "page.cache.of.latents.read"],
  indexes: ["page.cache.of.indexes", "page.cache.of.indexes.read"],
  states: ["page.cache.of.states", "page.cache.of.states"], rows: ["page.cache.of.rows", "page.cache.of.rows"],
};
export function named(all: readonly Kept[]): [Key, Key][] {
  const kinds = new Set<string>(all.map((k) => k.what));
  if (all.some((k) => k.state > 0)) kinds.add("states");
  return Object.entries(NAMED).flatMap(([kind, keys]) => (kinds.has(kind) ? [keys] : []));
}

// The earlier rows that the first new row reads: those that any part still keeps.
export const readRows = (all: readonly Kept[], before: number): number => Math.min(before, Math.max(1, ...all.filter((k) => !k.memory).map((k) => k.most)) - 1);

// reused: the earlier rows that are read.
export interface CacheStep { step: number; rows: number; before: number; reused: number; bytes: number; total: number; flops: number | null; tensors: Tensor[] }

// Step by step: the rows that are computed, those read from the cache, and the bytes stored after it.
export function cacheSteps(steps: readonly Pick<Step, "step" | "fed" | "past">[], of: Record<number, Tensor[]>, masks: Masks = {}): CacheStep[] {
  let before = 0, memory = 0;
  return steps.filter((s) => of[s.step]).map((s) => {
    const tensors = of[s.step] ?? [], all = kept(tensors, masks);
    if (s.step === 0) memory = all.filter((k) => k.memory).reduce((n, k) => n + keptBytes(k, 0), 0);
    const total = memory + all.filter((k) => !k.memory).reduce((n, k) => n + keptBytes(k, s.past + s.fed.length), 0), bytes = total - before;
    before = total;
    return { step: s.step, rows: s.fed.length, before: s.past, reused: readRows(all, s.past), bytes, total, flops: together(tensors, "flops"), tensors };
  });
}
