// The logit lens after each block, and each part's addition to a token's logit.

import { split } from "./river";
import type { AttributionDocument, ShareDocument } from "./documents";

export type Share = ShareDocument & { value: number };
export type Attribution = Omit<AttributionDocument, "value" | "total" | "parts" | "rest"> & { value: number; total: number; parts: Share[]; rest: Share[] };

// JSON has null for a number that is not finite.
const known = (s: ShareDocument): Share => ({ ...s, value: s.value ?? NaN });
export const attributed = (d: AttributionDocument): Attribution => ({ ...d, value: d.value ?? NaN, total: d.total ?? NaN, parts: d.parts.map(known), rest: d.rest.map(known) });

// One block: each attention with its heads, in order, and the parts without heads.
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
