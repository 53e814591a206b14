// The names of a picture's parts, above it: over each block's halves where they fit, else once over a stack.

import type { Panel } from "./map";
import type { Key } from "../messages";
import type { MapBlockDocument, MapDocument } from "./map_documents";
import type { Row } from "./river";
import { axes, type Tensor } from "./types";

// crossed: an attention and one to the encoder; cross: the latter alone.
export type Part = "embedding" | "attention" | "mixing" | "crossed" | "cross" | "feed" | "experts" | "probabilities";
export const TITLES: Record<Part, Key> = {
  embedding: "page.heading.embedding", attention: "page.heading.attention", mixing: "page.heading.mixing", crossed: "page.heading.crossed", cross: "page.heading.cross",
  feed: "page.heading.feed", experts: "page.heading.experts", probabilities: "page.heading.probabilities",
};
export interface Heading { x: number; anchor: "start" | "middle" | "end"; parts: { part: Part | ""; text: string }[] }
export interface Words { of: (part: Part) => string; blocks: (count: number) => string; stack: (name: string) => string }

const NARROW = 7.2, WIDE = 12.6, AIR = 10; // px of a letter, of a Chinese character, and beside a heading

export const lengthOf = (text: string): number => [...text].reduce((n, c) => n + ((c.codePointAt(0) ?? 0) > 0x2e7f ? WIDE : NARROW), 0);

// What mixes a block's tokens, and what each token passes alone.
export function partsOf(block: MapBlockDocument, tensors: readonly Tensor[]): Part[] {
  const own = tensors.filter((t) => t.path.startsWith(`${block.path}.`));
  const attends = own.some((t) => t.result === "shares" && axes(t).includes("S")), other = own.some((t) => /\.(conv|delta|mamba)(\.|$)/.test(t.path));
  const experts = own.some((t) => t.result === "choice");
  return [attends && !other ? (block.cross.length > 0 ? "crossed" : "attention") : "mixing", ...(block.feed.length > 0 ? [experts ? ("experts" as const) : ("feed" as const)] : [])];
}

// The part that a row of the cards shows; undefined for one that has no name.
export function partOf(row: Row): Part | undefined {
  const own = row.columns.flat();
  if (row.tail) return own.length > 0 ? "probabilities" : undefined;
  if (!row.block) return own.some((t) => t.result === "embedding") || row.stems.some((t) => t.result === "embedding") ? "embedding" : undefined;
  if (row.part === "ffn") return own.some((t) => t.result === "choice") ? "experts" : "feed";
  return ({ attn: "attention", cross: "cross", conv: "mixing", delta: "mixing", mamba: "mixing" } as const)[row.part];
}

// Which kinds of marks a map has, beside bands: a Mamba has none of both.
export function marksOf(map: MapDocument | undefined): { ribbons: boolean; swellings: boolean } {
  const blocks = (map?.stacks ?? []).flatMap((s) => s.blocks);
  return { ribbons: blocks.some((b) => b.edges.length + b.crossed.length > 0), swellings: blocks.some((b) => b.feed.length > 0) };
}

export function headings(panels: readonly Panel[], tensors: readonly Tensor[], words: Words): Heading[] {
  const all: Heading[] = [];
  let end = 0; // of the heading before
  for (const p of panels) {
    const blocks = p.stack.blocks.map((b) => partsOf(b, tensors)), shares = [0.52, 0.46] as const, middles = [0.26, 0.76] as const;
    const embedding = words.of("embedding"), wide = p.step * blocks.length;
    if (lengthOf(embedding) + AIR <= p.start - end) all.push({ x: p.start - AIR, anchor: "end", parts: [{ part: "embedding", text: embedding }] });
    if (panels.length === 1 && blocks.every((b) => b.every((part, i) => lengthOf(words.of(part)) + AIR <= p.step * (shares[i] ?? 0)))) {
      blocks.forEach((b, n) => b.forEach((part, i) => all.push({ x: p.start + p.step * (n + (middles[i] ?? 0)), anchor: "middle", parts: [{ part, text: words.of(part) }] })));
    } else {
      const kinds = [0, 1].flatMap((i) => [...new Set(blocks.flatMap((b) => b[i] ?? []))]), count = { part: "" as const, text: words.blocks(blocks.length) };
      const name = p.stack.name ? [{ part: "" as const, text: words.stack(p.stack.name) }] : [], told = kinds.map((part) => ({ part, text: words.of(part) }));
      const fits = [[...name, count, ...told], [...name, ...told], [...name, count], [count]].find((parts) => lengthOf(parts.map((one) => one.text).join(" · ")) <= wide + AIR);
      if (fits) all.push({ x: p.start, anchor: "start", parts: fits });
    }
    end = p.start + wide;
  }
  return all;
}
