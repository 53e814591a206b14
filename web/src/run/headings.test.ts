import { expect, it } from "vitest";
import { headings, marksOf, partsOf, type Words } from "./headings";
import type { Panel } from "./map";
import type { MapBlockDocument, MapDocument } from "./map_documents";
import type { Tensor } from "./types";

const WORDS: Words = { of: (part) => part, blocks: (count) => `${count} blocks`, stack: (name) => name };
const block = (path: string, more: Partial<MapBlockDocument> = {}): MapBlockDocument => ({ path, norms: [1], attention: [1], cross: [], feed: [1], edges: [], crossed: [], ...more });
const tensor = (path: string, result: string, dims: string): Tensor => ({ path, result, dims }) as Tensor;
const ATTENDS = [0, 1].map((n) => tensor(`layers.${n}.attn.pattern`, "shares", "B H T S"));
const panel = (step: number, blocks: MapBlockDocument[], name = "", start = 130): Panel => ({ stack: { name, rows: [], start: [], blocks }, left: start - 22, start, step, row: 30, top: 0 });
const texts = (all: ReturnType<typeof headings>): string[] => all.map((one) => one.parts.map((part) => part.text).join(" · "));
const BOTH = [block("layers.0"), block("layers.1")];

it("a map speaks of the marks that it has", () => {
  const map = (...blocks: MapBlockDocument[]): MapDocument => ({ stacks: [{ name: "", rows: [], start: [], blocks }] }) as unknown as MapDocument;
  const edge = { query: 1, key: 0, share: 1, head: 0, most: 1 };
  expect(marksOf(map(block("layers.0", { feed: [] })))).toEqual({ ribbons: false, swellings: false });
  expect(marksOf(map(block("layers.0", { feed: [] }), block("layers.1", { edges: [edge], feed: [] })))).toEqual({ ribbons: true, swellings: false });
  expect(marksOf(map(block("layers.0"), block("layers.1", { crossed: [edge] })))).toEqual({ ribbons: true, swellings: true });
  expect(marksOf(undefined)).toEqual({ ribbons: false, swellings: false });
});

it("a block's halves are named by what it has", () => {
  expect(partsOf(block("layers.0"), ATTENDS)).toEqual(["attention", "feed"]);
  expect(partsOf(block("layers.0", { cross: [1] }), ATTENDS)).toEqual(["crossed", "feed"]);
  expect(partsOf(block("layers.0", { feed: [] }), ATTENDS)).toEqual(["attention"]);
  expect(partsOf(block("layers.0"), [...ATTENDS, tensor("layers.0.ffn.choice", "choice", "B T A")])).toEqual(["attention", "experts"]);
  expect(partsOf(block("layers.1"), [...ATTENDS, tensor("layers.0.ffn.choice", "choice", "B T A")])).toEqual(["attention", "feed"]);
  expect(partsOf(block("layers.0"), [tensor("layers.0.mamba.y", "sum", "B T D")])).toEqual(["mixing", "feed"]);
  expect(partsOf(block("layers.0"), [...ATTENDS, tensor("layers.0.mamba.y", "sum", "B T D")])).toEqual(["mixing", "feed"]); // side by side
});

it("headings stand over each block where they fit, else once, else are shorter", () => {
  expect(texts(headings([panel(230, BOTH)], ATTENDS, WORDS))).toEqual(["embedding", "attention", "feed", "attention", "feed"]);
  expect(texts(headings([panel(110, BOTH)], ATTENDS, WORDS))).toEqual(["embedding", "2 blocks · attention · feed"]);
  expect(texts(headings([panel(70, BOTH)], ATTENDS, WORDS))).toEqual(["embedding", "attention · feed"]);
  expect(texts(headings([panel(35, BOTH)], ATTENDS, WORDS))).toEqual(["embedding", "2 blocks"]);
  expect(texts(headings([panel(13, [block("layers.0")], "", 60)], ATTENDS, WORDS))).toEqual([]);
});

it("two stacks are told by name", () => {
  expect(texts(headings([panel(150, BOTH, "encoder"), panel(150, BOTH, "decoder", 560)], ATTENDS, WORDS))).toEqual(["embedding", "encoder · 2 blocks · attention · feed", "embedding", "decoder · 2 blocks · attention · feed"]);
});
