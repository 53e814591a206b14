// The keys that count for a query, as one range of positions: the same rule as the model's own (batch/mask.py). A picture clears the rest.

import type { View } from "./heat";

export type { MaskDocument as Mask } from "../run/documents";
import type { MaskDocument as Mask } from "../run/documents";

// stretch({causal, window: 2}, 5) is [4, 6]: the first key that the query of position 5 sees, and the first after them.
export function stretch(s: Mask, q: number): [number, number] {
  if (s.fill !== null) return [0, Infinity];
  const low = Math.max(0, s.window === null ? 0 : q - s.window + 1, s.chunk === null ? 0 : Math.floor(q / s.chunk) * s.chunk);
  const high = Math.min(s.causal ? Math.max(q + 1, s.until) : Infinity, s.around && s.window !== null ? q + s.window : Infinity, s.chunk === null ? Infinity : (Math.floor(q / s.chunk) + 1) * s.chunk);
  return [low, high];
}

export const sees = (s: Mask, q: number, k: number): boolean => { const [low, high] = stretch(s, q); return k >= low && k < high; };

interface Box { x: number; y: number; width: number; height: number }

// Clear the masked cells of a picture, and hatch them; first: the position of the first row's query.
export function veil(context: CanvasRenderingContext2D, box: Box, view: View, s: Mask, first: number, paint = true): void {
  const tall = box.height / view.rows, wide = box.width / view.columns, steps = tall >= 1 ? Math.ceil(view.rows) : Math.ceil(box.height);
  const hatch = paint ? hatched(context) : null, end = view.column + view.columns;
  const hide = (from: number, to: number, y: number, high: number): void => {
    const x = box.x + (Math.max(view.column, from) - view.column) * wide, right = box.x + (Math.min(end, to) - view.column) * wide;
    if (right <= x) return;
    context.clearRect(x, y, right - x, high);
    if (hatch) { context.fillStyle = hatch; context.fillRect(x, y, right - x, high); }
  };
  for (let i = 0; i < steps; i++) {
    const row = tall >= 1 ? Math.floor(view.row) + i : Math.floor(view.row + (i + 0.5) / tall), top = tall >= 1 ? (row - view.row) * tall : i, high = tall >= 1 ? tall : 1;
    const y = box.y + Math.max(0, top), [low, after] = stretch(s, first + row), left = Math.min(high, box.height - Math.max(0, top));
    if (left <= 0) continue;
    hide(-Infinity, low, y, left);
    hide(after, Infinity, y, left);
  }
}

let tile: HTMLCanvasElement | undefined;
function hatched(context: CanvasRenderingContext2D): CanvasPattern | null {
  if (!tile) {
    tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const own = tile.getContext("2d");
    if (own) {
      own.strokeStyle = "rgb(128 128 136 / 45%)";
      own.beginPath();
      for (const at of [-4, 0, 4, 8]) { own.moveTo(at, 8); own.lineTo(at + 8, 0); }
      own.stroke();
    }
  }
  return context.createPattern(tile, "repeat");
}
