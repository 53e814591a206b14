// Where the marks of the map stand: every length is one of the document's numbers times a scale that the picture states.

import type { MapBlockDocument, MapDocument, MapEdgeDocument, MapStackDocument } from "./map_documents";

export interface Panel { stack: MapStackDocument; left: number; start: number; step: number; row: number; top: number } // start: of the first block; step: a block's width
export interface Layout { panels: Panel[]; width: number; height: number; row: number; band: number }

const LETTER = 8.2, STUB = 22, LEAST = 13, GAP = 26;

// free: pixels that are free; letters: of the longest piece that is drawn whole.
export function layout(map: MapDocument, free: number, letters = 14): Layout {
  const rows = Math.max(1, ...map.stacks.map((s) => s.rows.length)), row = Math.max(15, Math.min(68, 400 / rows)), band = row * 0.28;
  const words = map.stacks.map((s) => 14 + LETTER * Math.min(letters, Math.max(2, ...s.rows.map((r) => pieceOf(r).length))));
  const blocks = map.stacks.reduce((n, s) => n + s.blocks.length, 0), fixed = words.reduce((n, w) => n + w + STUB, 0) + GAP * Math.max(0, words.length - 1);
  const step = Math.max(LEAST, (free - fixed) / Math.max(1, blocks));
  let left = 0;
  const panels = map.stacks.map((stack, i) => {
    const start = left + (words[i] ?? 0) + STUB, panel = { stack, left: left + (words[i] ?? 0), start, step, row, top: ((rows - stack.rows.length) * row) / 2 };
    left = start + step * stack.blocks.length + GAP;
    return panel;
  });
  return { panels, width: left - GAP, height: rows * row, row, band };
}

export const middle = (p: Panel, row: number): number => p.top + (row + 0.5) * p.row;

// From faint to full as the norm's logarithm goes from the least norm of the picture to its greatest.
export function brightness(map: MapDocument): { of: (norm: number | null | undefined) => number; least: number; most: number } {
  const all = map.stacks.flatMap((s) => [...s.start, ...s.blocks.flatMap((b) => b.norms)]).filter((x): x is number => x !== null && x > 0);
  const least = all.reduce((m, x) => Math.min(m, x), Infinity), most = all.reduce((m, x) => Math.max(m, x), 0), span = Math.log(most / least);
  return { of: (x) => (x === null || x === undefined || x <= 0 ? 0 : 0.14 + 0.86 * (span > 0 ? Math.log(x / least) / span : 1)), least, most };
}

// Half the height of a swelling: a part that adds as much as there is swells to half of the row's free space, one that adds far more to all of it.
export const swelling = (ratio: number | null | undefined, l: Layout): number => (ratio ? (l.row * 0.47 - l.band / 2) * (ratio / (1 + ratio)) : 0);

export function lens(p: Panel, l: Layout, block: number, row: number, ratio: number): string {
  const a = p.start + p.step * (block + 0.54), b = p.start + p.step * (block + 0.98), m = (a + b) / 2, y = middle(p, row), h = l.band / 2 + swelling(ratio, l);
  const q = (b - a) / 4, f = (n: number): string => n.toFixed(1);
  const half = (from: number, to: number, s: number): string => `C${f(from + s * q)} ${f(y)} ${f(m - s * q)} ${f(y - s * h)} ${f(m)} ${f(y - s * h)}C${f(m + s * q)} ${f(y - s * h)} ${f(to - s * q)} ${f(y)} ${f(to)} ${f(y)}`;
  return `M${f(a)} ${f(y)}${half(a, b, 1)}${half(b, a, -1)}Z`;
}

// A share of 1 is as wide as this.
export const widest = (l: Layout): number => l.row * 0.5;

// from: the panel of the keys, another one for a cross-attention.
export function ribbon(p: Panel, block: number, edge: MapEdgeDocument, from: Panel = p): string {
  const a = from === p ? p.start + p.step * block : from.start + from.step * from.stack.blocks.length, b = p.start + p.step * (block + 0.52), m = from === p ? (a + b) / 2 : b - p.step * 0.4;
  return curve(a, middle(from, edge.key), b, middle(p, edge.query), m);
}

export function curve(a: number, y: number, b: number, z: number, m = (a + b) / 2): string {
  const f = (n: number): string => n.toFixed(1);
  return `M${f(a)} ${f(y)}C${f(m)} ${f(y)} ${f(m)} ${f(z)} ${f(b)} ${f(z)}`;
}

// block -1: the words and the vectors that enter the first block.
export interface Cell { panel: number; block: number; row: number }

// The cell under a point of the picture.
export function cellAt(l: Layout, x: number, y: number): Cell | undefined {
  for (const [panel, p] of l.panels.entries()) {
    const block = Math.max(-1, Math.floor((x - p.start) / p.step)), row = Math.floor((y - p.top) / p.row);
    if (x >= 0 && block < p.stack.blocks.length && row >= 0 && row < p.stack.rows.length) return { panel, block, row };
  }
  return undefined;
}

// What a row reads in a block, the strongest first, and what reads it.
export const reads = (b: MapBlockDocument, row: number): MapEdgeDocument[] => b.edges.filter((e) => e.query === row);

// The row that the answer stands in: of a blank, else the last.
export const answered = (stack: MapStackDocument, row: number): number => (row < 0 ? stack.rows.length - 1 : stack.rows.findIndex((r) => row >= r.first && row < r.first + r.count));

// A token as it is shown: its piece, or its id for a model without a tokenizer.
export const pieceOf = (t: { piece: string; id: number } | undefined): string => (t ? t.piece || `#${t.id}` : "");

// "layers.12" and "decoder.layers.12" are 12
export const numberOf = (path: string): string => path.split(".").at(-1) ?? path;
