// The path of a line from one card to another: a curve if no card is between them, else along the gaps between cards.

export interface Box { left: number; top: number; right: number; bottom: number }
type Point = [x: number, y: number];

const GAP = 9; // px beside and below cards where lines may run; cards stand farther apart
const ROUND = 6; // px, the radius of a turn
const STEPS = 16; // points of a curve that are tested

const middle = (b: Box): number => (b.left + b.right) / 2;
const inside = ([x, y]: Point, b: Box): boolean => x > b.left + 1 && x < b.right - 1 && y > b.top + 1 && y < b.bottom - 1;

// Whether a way from corner to corner crosses none of the cards.
function free(way: readonly Point[], cards: readonly Box[]): boolean {
  return way.slice(1).every(([x, y], i) => {
    const [u, v] = way[i] as Point, [left, right, top, bottom] = [Math.min(x, u), Math.max(x, u), Math.min(y, v), Math.max(y, v)];
    return !cards.some((b) => left < b.right - 1 && right > b.left + 1 && top < b.bottom - 1 && bottom > b.top + 1);
  });
}

// Straight pieces with round turns.
function drawn(way: readonly Point[]): string {
  return way.map(([x, y], i) => {
    const before = way[i - 1], after = way[i + 1];
    if (!before || !after) return `${before ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    const near = ([u, v]: Point): string => { const far = Math.hypot(u - x, v - y) || 1, r = Math.min(ROUND, far / 2); return `${(x + ((u - x) * r) / far).toFixed(1)} ${(y + ((v - y) * r) / far).toFixed(1)}`; };
    return `L${near(before)}Q${x.toFixed(1)} ${y.toFixed(1)} ${near(after)}`;
  }).join("");
}

// A curve from the right of one card to the left of the next, or from the foot of one to the head of one below.
function curve(from: Box, to: Box): [Point, Point, Point, Point] | undefined {
  if (to.left >= from.right) {
    const a = from.top + Math.min(40, (from.bottom - from.top) / 2), b = to.top + Math.min(40, (to.bottom - to.top) / 2), bend = Math.min(60, (to.left - from.right) / 2);
    return [[from.right, a], [from.right + bend, a], [to.left - bend, b], [to.left, b]];
  }
  if (to.top < from.bottom) return undefined;
  const bend = Math.min(46, (to.top - from.bottom) / 2 + 8);
  return [[middle(from), from.bottom], [middle(from), from.bottom + bend], [middle(to), to.top - bend], [middle(to), to.top]];
}

const bezier = ([a, b, c, d]: readonly [Point, Point, Point, Point], t: number): Point => {
  const u = 1 - t, mix = (i: 0 | 1): number => u * u * u * a[i] + 3 * u * u * t * b[i] + 3 * u * t * t * c[i] + t * t * t * d[i];
  return [mix(0), mix(1)];
};

// The bottom of a card's row: of the cards beside it, and those beside them.
function foot(from: Box, others: readonly Box[]): number {
  let top = from.top, bottom = from.bottom;
  for (let grown = true; grown;) {
    grown = false;
    for (const b of others) if (b.top < bottom && b.bottom > top && (b.top < top || b.bottom > bottom)) [top, bottom, grown] = [Math.min(top, b.top), Math.max(bottom, b.bottom), true];
  }
  return bottom;
}

// cards: all that a line must not run behind, its two ends among them.
export function route(from: Box, to: Box, cards: readonly Box[]): string {
  const others = cards.filter((b) => b !== from && b !== to), bent = curve(from, to);
  if (bent && Array.from({ length: STEPS }, (_, i) => bezier(bent, (i + 1) / (STEPS + 1))).every((p) => !others.some((b) => inside(p, b)))) {
    const [a, b, c, d] = bent.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
    return `M${a}C${b} ${c} ${d}`;
  }
  const below = foot(from, others) + GAP / 2;
  const out = from.top + Math.min(50, (from.bottom - from.top) / 2), into = to.top + Math.min(50, (to.bottom - to.top) / 2);
  const starts: Point[][] = [[[middle(from), from.bottom], [middle(from), below]], [[from.right, out], [from.right + GAP, out], [from.right + GAP, below]]];
  const ends: Point[][] = [[[middle(to), below], [middle(to), to.top]], [[to.left - GAP, below], [to.left - GAP, into], [to.left, into]]];
  const ways = starts.flatMap((s) => ends.filter((_, i) => i === 1 || to.top >= below).map((e) => [...s, ...e]));
  return drawn(ways.find((way) => free(way, others)) ?? (ways.at(-1) as Point[]));
}
