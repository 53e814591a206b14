// Where the names of a plane's points stand: near their point, on no other name and on no point.

import { letters } from "./picture";

export interface Box { left: number; right: number; top: number; bottom: number }
export interface Named { x: number; y: number; name: string }
// x, y: of the text's baseline, where it begins; far: a line from its point leads to it.
export interface Spot { x: number; y: number; far: boolean; box: Box }

const LETTER = 7.8, UP = 11.5, DOWN = 3.5, DOT = 5; // of a name: a letter's width, above and below its baseline; a point's radius
const AWAY = [9, 20, 34, 50, 70], WAYS = [[1, 0], [-1, 0], [0, 1], [0, -1], [0.8, 0.6], [0.8, -0.6], [-0.8, 0.6], [-0.8, -0.6]] as const, CROSSED = 26;

const meet = (a: Box, b: Box): boolean => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

// True if the line between two points crosses the box, by Liang and Barsky.
function crosses(b: Box, [x0, y0, x1, y1]: readonly [number, number, number, number]): boolean {
  let from = 0, to = 1;
  for (const [p, q] of [[x0 - x1, x0 - b.left], [x1 - x0, b.right - x0], [y0 - y1, y0 - b.top], [y1 - y0, b.bottom - y0]] as const) {
    if (p === 0 && q < 0) return false;
    if (p < 0) from = Math.max(from, q / p);
    if (p > 0) to = Math.min(to, q / p);
  }
  return from <= to;
}

// A place for each name in order, null where none is free. frame: of the picture; taken: other texts; lines: arrows, which a name crosses if it must.
export function besidePoints(points: readonly Named[], all: readonly { x: number; y: number }[], frame: Box, taken: readonly Box[], lines: readonly (readonly [number, number, number, number])[]): (Spot | null)[] {
  const dots = all.map(({ x, y }) => ({ left: x - DOT, right: x + DOT, top: y - DOT, bottom: y + DOT })), used = [...taken];
  return points.map(({ x, y, name }) => {
    const wide = LETTER * letters(name);
    let best: Spot | null = null, least = Infinity;
    for (const away of AWAY) for (const [right, down] of WAYS) {
      const cx = x + right * away, begin = right > 0 ? cx : right < 0 ? cx - wide : cx - wide / 2, base = y + down * (away + (down > 0 ? UP - 4 : 0)) + (down === 0 ? 4 : 0);
      const box = { left: begin - 1, right: begin + wide + 1, top: base - UP, bottom: base + DOWN };
      if (away >= least || box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom) continue;
      if (used.some((u) => meet(u, box)) || dots.some((d) => meet(d, box))) continue;
      const cost = away + CROSSED * lines.filter((line) => crosses(box, line)).length;
      if (cost < least) [best, least] = [{ x: begin, y: base, far: away > 15, box }, cost];
    }
    if (best) used.push(best.box);
    return best;
  });
}
