// What a head's shares weigh: the values of the shown keys, and z, their weighted sum for each shown query. All of them ran.

import { keyRows, rowsOf, type Part } from "./dots";
import { axes, type Run, type Tensor } from "./types";

export interface Values { sum: Tensor; values: Float64Array[]; z: Float64Array[] } // values: by key; z: by query

// Undefined: the block has no such tensors, they are not here, or z has no axis of heads.
export async function valuesOf(run: Run, pattern: Tensor, head: number, { rows, columns }: Part, all: (step: number) => readonly Tensor[]): Promise<Values | undefined> {
  const part = pattern.path.slice(0, pattern.path.lastIndexOf(".")), sum = all(pattern.step).find((t) => t.result === "attention" && t.path === `${part}.z`);
  if (!sum || !axes(sum).includes("H") || !axes(sum).includes("T")) return undefined;
  const values = await keyRows(run, `${part}.v`, pattern, head, columns, all);
  if (!values || values[0]?.length !== sum.shape.at(-1)) return undefined;
  return { sum, values, z: await rowsOf(run.run, sum, head, pattern.shape[axes(pattern).indexOf("H")] ?? 1, rows[0], rows[1]) };
}
