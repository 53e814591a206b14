// The masked cells of scores or a pattern: 0 because their query may not see their key.

import { sees, veil, type Mask } from "../draw/mask";
import type { View } from "../draw/heat";
import { axes, type Run, type Tensor } from "./types";

export interface Hiding { mask: Mask; before: number } // before: the position of the first row's query

// The mask of a tensor by query and key, if the run's document has it; else undefined.
export function hiding(run: Run | null, t: Tensor): Hiding | undefined {
  const names = axes(t), mask = run?.masks[t.path.slice(0, t.path.lastIndexOf("."))];
  if (!mask || !names.includes("T") || !names.includes("S") || (t.result !== "shares" && t.result !== "scores")) return undefined;
  return { mask, before: t.path.startsWith("encoder.") ? 0 : (run?.steps.find((s) => s.step === t.step)?.past ?? 0) };
}

export function hidden(h: Hiding | undefined, t: Tensor, cell: readonly number[]): boolean {
  const names = axes(t), query = cell[names.indexOf("T")], key = cell[names.indexOf("S")];
  return h !== undefined && query !== undefined && key !== undefined && !sees(h.mask, h.before + query, key);
}

interface Box { x: number; y: number; width: number; height: number }

// Hatch it in a picture whose rows are queries, or in one that is turned.
export function hatch(context: CanvasRenderingContext2D, box: Box, view: View, h: Hiding, transposed = false, paint = true): void {
  if (!transposed) return veil(context, box, view, h.mask, h.before, paint);
  context.save();
  context.transform(0, 1, 1, 0, 0, 0);
  veil(context, { x: box.y, y: box.x, width: box.height, height: box.width }, { row: view.column, column: view.row, rows: view.columns, columns: view.rows }, h.mask, h.before, paint);
  context.restore();
}
