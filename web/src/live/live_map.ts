// A run on one screen and its lens, computed here: what documents/run_map.py and documents/lens.py make of the same tensors.

import type { LensLayerDocument } from "../run/documents";
import type { MapBlockDocument, MapDocument, MapEdgeDocument, MapStackDocument } from "../run/map_documents";
import { stackOf } from "../run/river";
import { probabilities, ranked } from "../sampling/stages";
import type { LiveRun, LiveStep } from "./live_run";
import type { StepTensor } from "./present";

const CELLS = 1000, MOST = 32, LEAST = 8, EDGES = 900, FAINT = 0.02; // documents/run_map.py says what they are

const PARTS = ["attn", "cross", "ffn"];
const blockOf = (path: string): string => /^(\w+\.)?layers\.\d+/.exec(path)?.[0] ?? "";
const sum = (x: readonly number[]): number => x.reduce((a, b) => a + b, 0);

// The parts of one block: what is added to the stream, and to what.
interface Block { path: string; enters: string; added: { part: string; path: string; stream: string }[]; leaves: string; pattern: string | undefined; cross: string | undefined }

export function blocks(tensors: readonly StepTensor[]): Block[] {
  const paths = [...new Set(tensors.map((t) => blockOf(t.path)).filter(Boolean))], known = new Set(tensors.map((t) => t.path));
  return paths.flatMap((path) => {
    const own = tensors.filter((t) => t.path.startsWith(`${path}.`)), name = (t: string): string => t.slice(path.length + 1);
    const rows = own.filter((t) => t.dims === "B T D" && !name(t.path).includes("."));
    const sums = rows.filter((t) => t.op === "add" && ![...PARTS, "both"].includes(name(t.path)) && known.has(t.inputs[0] ?? ""));
    const parts = (one: string): string[] => (one === `${path}.both` ? (own.find((t) => t.path === one)?.inputs ?? []) : [one]); // two parts that read x at once
    const added = sums.flatMap((s) => s.inputs.slice(1).flatMap(parts).filter((one) => known.has(one)).map((one) => ({ part: PARTS.find((p) => name(one).startsWith(p)) ?? "", path: one, stream: s.inputs[0] ?? "" })));
    const enters = sums[0]?.inputs[0], leaves = rows.at(-1)?.path;
    return enters === undefined || leaves === undefined ? [] : [{ path, enters, added, leaves, pattern: own.find((t) => t.path === `${path}.attn.pattern`)?.path, cross: own.find((t) => t.path === `${path}.cross.pattern`)?.path }];
  });
}

// A token of a stack: the step that computed it, and its row there.
interface At { step: number; row: number }

export function mapOf(run: LiveRun, k: number): MapDocument {
  const steps = run.steps.slice(0, k + 1), all = blocks(run.model.document.tensors), names = [...new Set(all.map((b) => stackOf(b.path)))], row = run.steps[k]?.answers[0]?.row;
  let before: Stack | undefined;
  const stacks = names.map((name) => {
    before = new Stack(run, steps, name, all, before);
    return before.document();
  });
  return { schema: 1, run: run.id, step: k, values: true, stacks, faint: FAINT, left: 0, lens: row === undefined ? [] : lensOf(run, k, row, run.steps[k]?.picked ?? 0, 1) };
}

// A stack of blocks: the only one, or an encoder and after it a decoder. before: the stack that its cross-attention reads.
class Stack {
  readonly groups: At[][];
  readonly each: number;
  private readonly own: Block[];
  constructor(private readonly run: LiveRun, private readonly steps: readonly LiveStep[], private readonly name: string, private readonly all: readonly Block[], private readonly before: Stack | undefined) {
    this.own = all.filter((b) => stackOf(b.path) === name);
    const leaves = this.own[0]?.leaves ?? "";
    let at: At[] = []; // a step that reads its text again begins at its first row
    steps.forEach((s, step) => { if (s.values.has(leaves)) at = [...at.slice(0, name === "encoder" ? 0 : s.past), ...Array.from({ length: run.model.rowsOf(s, leaves) }, (_, row) => ({ step, row }))]; });
    this.each = Math.max(1, Math.ceil(at.length / Math.max(LEAST, Math.min(MOST, Math.floor(CELLS / Math.max(1, all.length))))));
    this.groups = Array.from({ length: Math.ceil(at.length / this.each) }, (_, i) => at.slice(i * this.each, (i + 1) * this.each));
  }

  // Euclidean norms of the rows of a tensor of a step.
  private norms(step: LiveStep, path: string): number[] {
    const x = step.values.get(path) ?? new Float32Array(), rows = this.run.model.rowsOf(step, path), width = x.length / rows;
    return Array.from({ length: rows }, (_, i) => Math.sqrt(x.subarray(i * width, (i + 1) * width).reduce((n, v) => n + v * v, 0)));
  }

  private grouped(of: (step: LiveStep) => number[]): number[] {
    const numbers = this.steps.map(of);
    return this.groups.map((g) => sum(g.map(({ step, row }) => numbers[step]?.[row] ?? NaN)) / g.length);
  }

  // By row what a part adds, by the norm of the stream to which it adds it; nothing of a part that the block lacks.
  private ratios(block: Block, part: string): number[] {
    const added = block.added.filter((a) => a.part === part);
    return added.length === 0 ? [] : this.grouped((s) => {
      const parts = added.map((a) => [this.norms(s, a.path), this.norms(s, a.stream)] as const);
      return (parts[0]?.[0] ?? []).map((_, i) => sum(parts.map(([x, stream]) => (x[i] ?? NaN) / (stream[i] ?? NaN))));
    });
  }

  document(): MapStackDocument {
    const { run } = this, most = Math.max(4, Math.floor(EDGES / this.all.length)), ids = this.name === "encoder" ? run.asked.ids : [...run.read, ...run.new];
    const documents = this.own.map((block): MapBlockDocument => {
      const many = block.cross ? Math.floor(most / 2) : most;
      return {
        path: block.path, norms: this.grouped((s) => this.norms(s, block.leaves)), attention: this.ratios(block, "attn"), cross: block.cross ? this.ratios(block, "cross") : [], feed: this.ratios(block, "ffn"),
        edges: this.edges(this, block.pattern, many, true), crossed: this.before ? this.edges(this.before, block.cross, many, false) : [],
      };
    });
    const rows = this.groups.map((g, i) => {
      const first = i * this.each, id = ids[first + g.length - 1] ?? 0;
      return { first, count: g.length, piece: run.model.tokenizer.shown(id), id, step: g.at(-1)?.step ?? 0 };
    });
    return { name: this.name, rows, start: this.own[0] ? this.grouped((s) => this.norms(s, this.own[0]?.enters ?? "")) : [], blocks: documents };
  }

  // The strongest shares: summed over the keys of a group, averaged over its queries and the heads. others: between different rows alone.
  private edges(keys: Stack, pattern: string | undefined, most: number, others: boolean): MapEdgeDocument[] {
    if (pattern === undefined) return [];
    const cells: { query: number; key: number; heads: number[] }[] = [], length = keys.groups.reduce((n, g) => n + g.length, 0);
    this.groups.forEach((queries, query) => keys.groups.forEach((_, key) => {
      const heads: number[] = [];
      for (const { step, row } of queries) {
        const s = this.steps[step], x = s?.values.get(pattern);
        if (!s || !x) continue;
        const rows = this.run.model.rowsOf(s, pattern), columns = keys === this ? (this.name === "encoder" ? rows : s.past + s.fed.length) : length, count = x.length / (rows * columns);
        for (let h = 0; h < count; h++)
          for (let j = key * keys.each; j < Math.min(columns, (key + 1) * keys.each); j++) heads[h] = (heads[h] ?? 0) + (x[(h * rows + row) * columns + j] ?? 0) / queries.length;
      }
      if (!(others && query === key) && heads.length > 0) cells.push({ query, key, heads });
    }));
    return cells.map(({ query, key, heads }) => {
      const largest = Math.max(...heads);
      return { query, key, share: sum(heads) / heads.length, head: heads.indexOf(largest), most: largest };
    }).sort((a, b) => b.share - a.share || a.query - b.query || a.key - b.key).slice(0, most).filter((e) => e.share >= FAINT);
  }
}

// What the model would say if it ended before the first block, and after each: the calls behind the last block, on that row.
export function lensOf(run: LiveRun, k: number, row: number, id: number, top: number): LensLayerDocument[] {
  const { model } = run, step = run.steps[k], every = blocks(model.document.tensors), all = every.filter((b) => stackOf(b.path) === stackOf(every.at(-1)?.path ?? "")), last = model.document.plan.taps.find((t) => t.path === all.at(-1)?.leaves);
  if (!step || !last) return [];
  return [all[0]?.enters ?? "", ...all.map((b) => b.leaves)].map((path) => {
    const x = step.values.get(path) ?? new Float32Array(), width = x.length / step.fed.length, at = row < 0 ? step.fed.length + row : row;
    const logits = model.plan.logitsFrom(last, x.slice(at * width, (at + 1) * width)), shares = probabilities(Float64Array.from(logits)).values, order = ranked(logits);
    return { path, rank: order.indexOf(id) + 1, followed: model.candidate(id, logits, shares), candidates: [...order.subarray(0, top)].map((one) => model.candidate(one, logits, shares)) };
  });
}
