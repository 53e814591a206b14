// The run's list of tensors as a river: the residual stream runs down the left, each part is an excursion from it, its tensors in columns.
// Built from paths and inputs alone, so that a family that is added later draws at once.

import { makers } from "./sources";
import type { Tensor } from "./types";

export interface Block { path: string; tensors: Tensor[] }
// stems: what the residual stream holds here; columns: the excursion that leaves it, by how many steps each tensor is from its start.
export interface Row { block: string; stems: Tensor[]; part: string; columns: Tensor[][]; tail: boolean }

const BLOCK = /^(.*?\blayers\.\d+)(?:\.(.*))?$/;

// "decoder.layers.3.attn.q" -> ["decoder.layers.3", "attn.q"]; outside of blocks the first is ""
export function split(path: string): [block: string, rest: string] {
  const match = BLOCK.exec(path);
  return match ? [match[1] ?? "", match[2] ?? ""] : ["", path];
}

// The stack that a tensor of a block is in: "decoder" of "decoder.layers.3.attn.q", "" where there is one alone.
export const stackOf = (path: string): string => path.replace(/\.?layers\.\d+.*/, "");

export function blocks(tensors: readonly Tensor[]): Block[] {
  const blocks = new Map<string, Tensor[]>();
  for (const t of tensors) {
    const [block] = split(t.path);
    if (block) blocks.set(block, [...(blocks.get(block) ?? []), t]);
  }
  return [...blocks].map(([path, own]) => ({ path, tensors: own }));
}

// The part that a tensor belongs to: attn, for attn.q and for attn_norm before it; a stack's own name outside of blocks.
function part(rest: string): string {
  return (rest.split(".")[0] ?? "").split("_")[0] ?? "";
}

export function river(tensors: readonly Tensor[]): Row[] {
  const rows: Row[] = [], runs = consecutive(tensors);
  const lastBlock = tensors.findLastIndex((t) => split(t.path)[0] !== "");
  let stems: Tensor[] = [];
  runs.forEach((run, i) => {
    const first = run[0] as Tensor, [block] = split(first.path), next = runs[i + 1];
    if (block && run.length === 1) {
      stems.push(first);
      return;
    }
    const enters = !block && next !== undefined && split((next[0] as Tensor).path)[0] !== "" ? run.at(-1) : undefined;
    const own = enters ? run.slice(0, -1) : run;
    if (own.length > 0 || stems.length > 0)
      rows.push({ block, stems, part: part(split(first.path)[1]), columns: ranked(own), tail: tensors.indexOf(first) > lastBlock });
    stems = enters ? [enters] : [];
  });
  if (stems.length > 0) rows.push({ block: "", stems, part: "", columns: [], tail: true });
  return rows;
}

// Rows of one block that do not wait for each other are one group, to be drawn side by side: none reads what another of them adds.
export function groups(rows: readonly Row[], tensors: readonly Tensor[]): Row[][] {
  const out: Row[][] = [];
  for (const row of rows) {
    const last = out.at(-1), before = last?.[0];
    const waits = !last || !row.block || before?.block !== row.block || row.stems.length > 0 || row.columns.length === 0 || before.columns.length === 0 || last.some((one) => reads(row, one, tensors));
    if (waits) out.push([row]);
    else last.push(row);
  }
  return out;
}

// True if the row's tensors were made, over whatever steps of their block, from what the other row ends in.
function reads(row: Row, other: Row, tensors: readonly Tensor[]): boolean {
  const end = other.columns.flat().reduce((a, b) => (b.n > a.n ? b : a)).path, seen = new Set<string>(), own = new Map(tensors.map((t) => [t.path, t]));
  const visit = (path: string): boolean => {
    const t = own.get(path);
    if (path === end) return true;
    if (!t || seen.has(path) || split(path)[0] !== row.block) return false;
    seen.add(path);
    return makers(t, tensors).some(visit);
  };
  return row.columns.flat().some((t) => visit(t.path));
}

// Neighbours of one part, each list an excursion; a tensor that joins parts, as the residual after attention, is a list by itself.
function consecutive(tensors: readonly Tensor[]): Tensor[][] {
  const runs: Tensor[][] = [];
  let open = "";
  for (const t of tensors) {
    const [block, rest] = split(t.path), key = block ? `${block} ${part(rest)}` : `outside ${stack(t.path)}`;
    if (key === open) (runs.at(-1) as Tensor[]).push(t);
    else runs.push([t]);
    open = key;
  }
  return runs;
}

const stack = (path: string): string => (path.startsWith("encoder.") ? "encoder" : ""); // its last norm ends a river of its own

// By steps from the first tensors of the excursion; what nothing here made stands first.
function ranked(tensors: readonly Tensor[]): Tensor[][] {
  const rank = new Map<string, number>(), columns: Tensor[][] = [];
  for (const t of tensors) {
    const before = makers(t, tensors).map((p) => rank.get(p)).filter((r) => r !== undefined);
    const own = before.length > 0 ? Math.max(...before) + 1 : 0;
    rank.set(t.path, own);
    (columns[own] ??= []).push(t);
  }
  return columns;
}
