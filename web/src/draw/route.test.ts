import { describe, expect, it } from "vitest";
import { route, type Box } from "./route";

const box = (left: number, top: number, width = 100, height = 60): Box => ({ left, top, right: left + width, bottom: top + height });

// The corners of a way of straight pieces; a round turn counts as the corner that it rounds.
const corners = (d: string): [number, number][] => [...d.matchAll(/(?:^M|Q|L)([\d.-]+) ([\d.-]+)/g)].map((m) => [Number(m[1]), Number(m[2])]);

describe("a line", () => {
  const q = box(0, 0), scores = box(150, 20), z = box(300, 0), out = box(0, 200);

  it("is a curve where nothing stands between", () => expect(route(q, scores, [q, scores, z])).toMatch(/^M100\.0 [\d.]+C/));

  it("goes below what stands between", () => {
    const way = route(q, z, [q, scores, z]), turns = corners(way);
    expect(way).not.toContain("C");
    expect(Math.max(...turns.map(([, y]) => y))).toBeGreaterThan(80);
    expect([turns[0], turns.at(-1)]).toEqual([[50, 60], [300, 30]]);
  });

  it("comes from the left where the next row is above a card's head", () => {
    const wall = box(0, 90, 100, 90), turns = corners(route(z, out, [q, scores, z, wall, out]));
    expect(turns.at(-1)).toEqual([0, 230]);
    for (const [x, y] of turns.slice(1, -1)) expect([q, scores, wall].some((b) => x > b.left && x < b.right && y > b.top && y < b.bottom)).toBe(false);
  });
});
