// A run on one screen and its lens, computed here: what documents/run_map.py and documents/lens.py make of the same tensors.

import type { LensLayerDocument } from "../run/documents";
import type { MapBlockDocument, MapDocument, MapEdgeDocument } from "../run/map_documents";
import { probabilities, ranked } from "../sampling/stages";
import type { LiveRun, LiveStep } from "./live_run";
import type { StepTensor } from "./present";

const CELLS = 1000, MOST = 32, LEAST = 8, EDGES = 900, FAINT = 0.02; // documents/run_map.py says what they are

const blockOf = (path: string): string => /^layers\.\d+/.exec(path)?.[0] ?? "";
const sum = (x: readonly number[]): number => x.reduce((a, b) => a + b, 0);

// The parts of one block: what is added to the stream, and to what.
interface Block { path: string; enters: string; added: { part: string; path: string; stream: string }[]; leaves: string; pattern: string | undefined }

export function blocks(tensors: readonly StepTensor[]): Block[] {
  const paths = [...new Set(tensors.map((t) => blockOf(t.path)).filter(Boolean))], known = new Set(tensors.map((t) => t.path));
  return paths.flatMap((path) => {
    const own = tensors.filter((t) => t.path.startsWith(`${path}.`)), name = (t: string): string => t.slice(path.length + 1);
    const rows = own.filter((t) => t.dims === "B T D" && !name(t.path).includes("."));
    const sums = rows.filter((t) => t.op === "add" && name(t.path) !== "attn" && name(t.path) !== "ffn" && known.has(t.inputs[0] ?? ""));
    const added = sums.flatMap((s) => s.inputs.slice(1).filter((one) => known.has(one)).map((one) => ({ part: ["attn", "ffn"].find((p) => name(one).startsWith(p)) ?? "", path: one, stream: s.inputs[0] ?? "" })));
    const enters = sums[0]?.inputs[0], leaves = rows.at(-1)?.path;
    return enters === undefined || leaves === undefined ? [] : [{ path, enters, added, leaves, pattern: own.find((t) => t.path === `${path}.attn.pattern`)?.path }];
  });
}

// Euclidean norms of the rows of a tensor of a step.
function norms(step: LiveStep, path: string): number[] {
  const x = step.values.get(path) ?? new Float32Array(), width = x.length / step.fed.length;
  return step.fed.map((_, i) => Math.sqrt(x.subarray(i * width, (i + 1) * width).reduce((n, v) => n + v * v, 0)));
}

export function mapOf(run: LiveRun, k: number): MapDocument {
  const steps = run.steps.slice(0, k + 1), all = blocks(run.model.document.tensors), ids = [...run.asked.ids, ...run.new];
  const at = steps.flatMap((s, step) => s.fed.map((_, row) => ({ step, row })));
  const each = Math.max(1, Math.ceil(at.length / Math.max(LEAST, Math.min(MOST, Math.floor(CELLS / Math.max(1, all.length))))));
  const groups = Array.from({ length: Math.ceil(at.length / each) }, (_, i) => at.slice(i * each, (i + 1) * each));
  const grouped = (of: (step: LiveStep) => number[]): number[] => {
    const numbers = steps.map(of);
    return groups.map((g) => sum(g.map(({ step, row }) => numbers[step]?.[row] ?? NaN)) / g.length);
  };
  const ratio = (block: Block, part: string) => (s: LiveStep): number[] => {
    const parts = block.added.filter((a) => a.part === part).map((a) => [norms(s, a.path), norms(s, a.stream)] as const);
    return s.fed.map((_, i) => sum(parts.map(([x, stream]) => (x[i] ?? NaN) / (stream[i] ?? NaN))));
  };
  const documents = all.map((block): MapBlockDocument => ({
    path: block.path, norms: grouped((s) => norms(s, block.leaves)), attention: block.added.some((a) => a.part === "attn") ? grouped(ratio(block, "attn")) : [], cross: [],
    feed: block.added.some((a) => a.part === "ffn") ? grouped(ratio(block, "ffn")) : [], edges: edges(steps, groups, block.pattern, Math.max(4, Math.floor(EDGES / all.length))), crossed: [],
  }));
  const rows = groups.map((g, i) => {
    const first = i * each, id = ids[first + g.length - 1] ?? 0;
    return { first, count: g.length, piece: run.model.bpe.shown(id), id, step: g.at(-1)?.step ?? 0 };
  });
  const start = all[0] ? grouped((s) => norms(s, all[0]?.enters ?? "")) : [];
  return { schema: 1, run: run.id, step: k, values: true, stacks: [{ name: "", rows, start, blocks: documents }], faint: FAINT, left: 0, lens: lensOf(run, k, -1, run.steps[k]?.picked ?? 0, 1) };
}

// The strongest shares between different rows: summed over the keys of a group, averaged over its queries and the heads.
function edges(steps: readonly LiveStep[], groups: readonly { step: number; row: number }[][], pattern: string | undefined, most: number): MapEdgeDocument[] {
  if (pattern === undefined) return [];
  const each = groups[0]?.length ?? 1, cells: { query: number; key: number; heads: number[] }[] = [];
  groups.forEach((queries, query) => groups.forEach((_, key) => {
    const heads: number[] = [];
    for (const { step, row } of queries) {
      const s = steps[step], x = s?.values.get(pattern);
      if (!s || !x) continue;
      const keys = s.past + s.fed.length, count = x.length / (s.fed.length * keys);
      for (let h = 0; h < count; h++)
        for (let j = key * each; j < Math.min(keys, (key + 1) * each); j++) heads[h] = (heads[h] ?? 0) + (x[(h * s.fed.length + row) * keys + j] ?? 0) / queries.length;
    }
    if (query !== key && heads.length > 0) cells.push({ query, key, heads });
  }));
  return cells.map(({ query, key, heads }) => {
    const most = Math.max(...heads);
    return { query, key, share: sum(heads) / heads.length, head: heads.indexOf(most), most };
  }).sort((a, b) => b.share - a.share || a.query - b.query || a.key - b.key).slice(0, most).filter((e) => e.share >= FAINT);
}

// What the model would say if it ended before the first block, and after each: the calls behind the last block, on that row.
export function lensOf(run: LiveRun, k: number, row: number, id: number, top: number): LensLayerDocument[] {
  const { model } = run, step = run.steps[k], all = blocks(model.document.tensors), last = model.document.plan.taps.find((t) => t.path === all.at(-1)?.leaves);
  if (!step || !last) return [];
  return [all[0]?.enters ?? "", ...all.map((b) => b.leaves)].map((path) => {
    const x = step.values.get(path) ?? new Float32Array(), width = x.length / step.fed.length, at = row < 0 ? step.fed.length + row : row;
    const logits = model.plan.logitsFrom(last, x.slice(at * width, (at + 1) * width)), shares = probabilities(Float64Array.from(logits)).values, order = ranked(logits);
    return { path, rank: order.indexOf(id) + 1, followed: model.candidate(id, logits, shares), candidates: order.slice(0, top).map((one) => model.candidate(one, logits, shares)) };
  });
}
