// Which tensors of two runs differ, as the server compared them number by number, and which tokens each would go on with.

import type { DifferenceDocument } from "./difference_documents";
import type { Run, Tensor } from "./types";

export interface Pair { before: Tensor; after: Tensor; largest: number | null }

export function pairs(before: Run, after: Run, compared: readonly DifferenceDocument[]): Pair[] {
  const mine = new Map(before.tensors.map((t) => [t.n, t])), theirs = new Map(after.tensors.map((t) => [t.n, t]));
  return compared.filter((d) => d.changed).flatMap((d) => {
    const [a, b] = [mine.get(d.n), theirs.get(d.other)];
    return a && b ? [{ before: a, after: b, largest: d.largest }] : [];
  });
}

export const alike = (p: Pair): boolean => p.before.shape.join() === p.after.shape.join();
