// The data of a tile's small picture: every head's matrix, complete if it is small, else pooled by the server.

import type { Scheme } from "../draw/colour";
import type { Grid } from "../tensor/grid";
import { layout, level, matrix } from "../tensor/view";
import { slice } from "./slices";
import { role } from "./role";
import { axes, type Tensor } from "./types";

const WHOLE = 1 << 20; // numbers of a tensor that is fetched as it is
const SMALL = 1 << 14; // cells of one pooled head
const HEADS = 16; // drawn of a tensor that is too large to be fetched whole

export interface Pictures { grids: Grid[]; level: number; of: number }

export const large = (t: Tensor): boolean => t.shape.reduce((n, a) => n * a, 1) > WHOLE;

// The requests for a large tensor: each head's matrix as the server pools it.
export function plan(t: Tensor): { level: number; at: string[] } {
  const { heads, rows, columns } = layout(axes(t)), of = heads < 0 ? 1 : (t.shape[heads] ?? 0);
  const at = (h: number): string => t.shape.map((_, i) => (i === rows || i === columns ? ":" : i === heads ? h : 0)).join();
  return { level: level(rows < 0 ? 1 : (t.shape[rows] ?? 1), columns < 0 ? 1 : (t.shape[columns] ?? 1), SMALL), at: Array.from({ length: Math.min(of, HEADS) }, (_, h) => at(h)) };
}

export const asGrid = (s: { values: ArrayLike<number>; shape: number[] }): Grid => ({ values: s.values, rows: s.shape.length > 1 ? (s.shape[0] ?? 1) : 1, columns: s.shape.at(-1) ?? 1 });

let last: Promise<unknown> = Promise.resolve();

// What the server has to compute anew comes one tensor after another, and none whose view is left by then: a tensor that is opened
// meanwhile waits for one at most.
export function pictures(run: string, t: Tensor, wanted = (): boolean => true): Promise<Pictures> {
  if (t.kept) return fetched(run, t);
  const mine = last.then(() => { if (wanted()) return fetched(run, t); throw new RangeError(t.path); });
  last = mine.catch(() => undefined);
  return mine;
}

async function fetched(run: string, t: Tensor): Promise<Pictures> {
  const { heads, rows, columns } = layout(axes(t)), of = heads < 0 ? 1 : (t.shape[heads] ?? 0);
  if (!large(t)) {
    const { values, shape } = await slice(run, t.n, t.shape.map(() => ":").join());
    const zero = shape.map(() => 0);
    return { grids: Array.from({ length: of }, (_, h) => matrix(values, shape, rows, columns, zero.map((_, i) => (i === heads ? h : 0)))), level: 0, of };
  }
  const { level: k, at } = plan(t);
  if (!t.kept) await slice(run, t.n, at[0] ?? "", k); // the others are cut from what this one has computed
  const got = await Promise.all(at.map((part) => slice(run, t.n, part, k)));
  return { grids: got.map(asGrid), level: k, of };
}

const SHARES = new Set<Tensor["result"]>(["shares", "gates", "expert shares"]);

// Probabilities and gates have their own map; everything else is signed.
export const scheme = (t: Pick<Tensor, "result">): Scheme => (SHARES.has(t.result) ? "share" : "signed");

// The end of the colour scale: 1 for probabilities, else the greatest magnitude of the whole tensor.
export const limit = (t: Tensor): number => (t.result === "shares" ? 1 : (t.stats?.absmax ?? 0));

// The residual stream: rows of its width, which only additions make longer.
const stream = (t: Tensor): boolean => role(t) === "residual" && axes(t).at(-1) === "D";
const ends = new WeakMap<readonly Tensor[], number>();

// One scale for the whole stream of a step, by its greatest magnitude; 0 for any other tensor.
export function streamLimit(t: Tensor, all: readonly Tensor[]): number {
  if (!stream(t)) return 0;
  const known = ends.get(all) ?? Math.max(0, ...all.filter(stream).map(limit));
  ends.set(all, known);
  return known;
}
