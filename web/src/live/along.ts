// How far two runs are at each row of what leaves a block, and at each head, as the server's comparison has it.

import type { DifferencesDocument } from "../run/difference_documents";

type Along = DifferencesDocument["along"][number];
export interface Both { n: number; path: string; dims: string; shape: readonly number[]; before: ArrayLike<number>; after: ArrayLike<number> }

const MOST = 64; // rows or heads of a table

export function along(tensors: readonly Both[]): Along[] {
  return tensors.flatMap(({ n, path, dims, shape, before, after }) => {
    const axis = !path.startsWith("layers.") ? undefined : path.endsWith(".out") ? "T" : path.endsWith(".attn.z") ? "H" : undefined, k = axis ? dims.split(" ").indexOf(axis) : -1, count = shape[k] ?? 0;
    if (axis === undefined || k < 0 || count > MOST || before.length !== after.length) return [];
    const inner = shape.slice(k + 1).reduce((a, b) => a * b, 1), size = new Float64Array(count), moved = new Float64Array(count), most = new Float64Array(count).fill(-1), at: number[] = Array(count).fill(0);
    for (let i = 0; i < before.length; i++) {
      const one = Math.floor(i / inner) % count, a = before[i] ?? 0, gap = (after[i] ?? NaN) - a;
      size[one] = (size[one] ?? 0) + a * a; moved[one] = (moved[one] ?? 0) + gap * gap;
      if (Math.abs(gap) > (most[one] ?? 0)) { most[one] = Math.abs(gap); at[one] = i; }
    }
    const cell = (flat: number): number[] => shape.map((_, d) => Math.floor(flat / shape.slice(d + 1).reduce((a, b) => a * b, 1)) % (shape[d] ?? 1));
    const shares = [...moved].map((m, i) => (m === 0 ? 0 : size[i] ? Math.sqrt(m / (size[i] ?? 1)) : null));
    return [{ n, path, axis, shares, cells: at.map(cell) }];
  });
}
