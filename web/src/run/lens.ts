// What the residual stream says of a token: after each block, and by what each part added to its logit.

import { split } from "./river";
import type { Candidate } from "./types";

export interface Layer { path: string; rank: number; followed: Candidate; candidates: Candidate[] }
export interface Lens { id: number; layers: Layer[] }
export interface Share { path: string; head: number | null; value: number }
export interface Attribution { id: number; path: string; value: number; total: number; parts: Share[]; rest: Share[] }

// Of one block: each attention with its heads, in order, and what is taken whole.
export interface Added { block: string; attentions: { path: string; heads: number[]; sum: number }[]; feed: Share[] }

export function byBlock(parts: readonly Share[]): Added[] {
  const blocks = new Map<string, Added>();
  for (const s of parts) {
    const [block] = split(s.path), own = blocks.get(block) ?? { block, attentions: [], feed: [] };
    blocks.set(block, own);
    if (s.head === null) own.feed.push(s);
    else {
      const part = own.attentions.find((a) => a.path === s.path) ?? own.attentions[own.attentions.push({ path: s.path, heads: [], sum: 0 }) - 1];
      if (part) { part.heads.push(s.value); part.sum += s.value; }
    }
  }
  return [...blocks.values()];
}

export const total = (shares: readonly { value: number }[]): number => shares.reduce((n, s) => n + s.value, 0);
