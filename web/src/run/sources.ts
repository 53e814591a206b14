// Which cells of its inputs a cell was made from: per input, an index for each axis, or null for all of it.

import { axes, type Tensor } from "./types";

export type Spot = (number | null)[];

// The tensors that one is drawn as made from. A fused attention reads q, k and v, but its sum is the pattern's shares of v.
export function makers(t: Tensor, tensors: readonly Tensor[]): string[] {
  if (t.result !== "attention") return t.inputs;
  const parent = t.path.slice(0, t.path.lastIndexOf(".") + 1);
  const inside = [`${parent}pattern`, `${parent}v`].filter((path) => tensors.some((s) => s.path === path));
  return inside.length === 2 ? inside : t.inputs;
}

// before: how many rows the cache held when this step began; of what it keeps (stored: by path) a row is counted from the first of them.
export function sources(t: Tensor, cell: readonly number[], tensors: readonly Tensor[], before = 0, stored: ReadonlySet<string> = new Set()): Map<string, Spot> {
  const spots = new Map<string, Spot>(), own = axes(t), paths = makers(t, tensors);
  const index = (letter: string): number | null => { const i = own.indexOf(letter); return i < 0 ? null : (cell[i] ?? null); };
  paths.forEach((path, i) => {
    const input = tensors.findLast((s) => s.path === path && s.n < t.n);
    if (!input) return;
    const names = axes(input), keys = t.result === "scores" && i >= paths.length / 2, attended = t.result === "attention";
    spots.set(path, names.map((a, axis) => {
      const size = input.shape[axis] ?? 1;
      if (a === "G" || a === "H") return grouped(index("H") ?? index("G"), size, t.shape[own.indexOf(own.includes("H") ? "H" : "G")] ?? size);
      if (a === "T" && (keys || !own.includes("T")) && own.includes("S")) return index("S"); // a row of the cache, or of step 0 where it is the same
      if (a === "T" && t.result === "last row") return size - 1; // sampling reads the last row's logits
      if (a === "T" && attended && !names.includes("S")) return null;
      if (axis === names.length - 1 && (t.result === "product" || t.result === "rotation" || t.result === "shares" || a === "S" && attended)) return null;
      const at = index(a);
      if (a === "T" && at !== null && stored.has(path)) return before + at;
      return at !== null && at < size ? at : null;
    }));
  });
  return spots;
}

// Query head 5 of 8 reads key/value head 1 of 2.
const grouped = (head: number | null, size: number, heads: number): number | null => (head === null ? null : Math.floor((head * size) / heads));
