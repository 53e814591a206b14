import { describe, expect, it } from "vitest";
import { chunks, fineness, clamped, zoomed } from "./chunks";
import { colour, NAN, STOPS } from "./colour";
import { multiples, pixels, type Placed } from "./heat";

const panel = (values: number[], rows: number, columns: number, width: number, height: number): Placed =>
  ({ grid: { values, rows, columns }, view: { row: 0, column: 0, rows, columns }, limit: 4, scheme: "signed", root: false, x: 0, y: 0, width, height });
const rgb = (out: Uint8ClampedArray, i: number): number[] => [...out.slice(4 * i, 4 * i + 3)];

describe("colours", () => {
  it("have the middle and the ends of their scale", () => {
    expect([colour(0, 1, "signed"), colour(-1, 1, "signed"), colour(9, 1, "signed"), colour(0, 1, "share"), colour(1, 1, "share")])
      .toEqual([STOPS.signed[3], STOPS.signed[0], STOPS.signed[6], STOPS.share[0], STOPS.share[9]]);
    expect(colour(NaN, 1, "signed")).toEqual(NAN);
    expect(colour(0.25, 1, "signed", true)).toEqual(colour(0.5, 1, "signed"));
    expect(colour(3, 0, "signed")).toEqual(STOPS.signed[3]);
    expect([colour(0, 1, "night"), colour(-1, 1, "night"), colour(0.25, 1, "night", true)]).toEqual([STOPS.night[3], STOPS.night[0], colour(0.5, 1, "night")]);
    expect(Math.max(...colour(0, 1, "night"))).toBeLessThan(60); // dark where nothing is
  });
});

describe("pixels", () => {
  it("show one cell where cells are large", () => {
    const out = pixels(panel([4, -4, 0, 2], 2, 2, 4, 4));
    expect([rgb(out, 0), rgb(out, 3), rgb(out, 12)]).toEqual([[...colour(4, 4, "signed")], [...colour(-4, 4, "signed")], [...colour(0, 4, "signed")]]);
  });

  it("show the cell of greatest magnitude where a pixel covers many, and never lose one", () => {
    const values = Array<number>(64).fill(0.1);
    values[37] = -4;
    const out = pixels(panel(values, 8, 8, 2, 2));
    expect(rgb(out, 3)).toEqual([...colour(-4, 4, "signed")]); // row 4, column 5
    expect(rgb(out, 0)).toEqual([...colour(0.1, 4, "signed")]);
    values[1] = NaN;
    expect(rgb(pixels(panel(values, 8, 8, 2, 2)), 0)).toEqual([...NAN]);
  });
});

describe("chunks", () => {
  it("cover what is in view and no more", () => {
    expect(chunks(5, 128, { row: 0, column: 0, rows: 5, columns: 128 }, 0)).toEqual([{ row: 0, column: 0, rows: 5, columns: 128 }]);
    const all = { row: 0, column: 0, rows: 4096, columns: 4096 }, level = fineness(all);
    expect(level).toBe(3);
    expect(chunks(4096, 4096, all, level)).toHaveLength(1);
    const near = chunks(4096, 4096, { row: 1000, column: 2040, rows: 60, columns: 60 }, 0);
    expect(near.map((c) => [c.row, c.column])).toEqual([[512, 1536], [512, 2048], [1024, 1536], [1024, 2048]]);
  });

  it("a view stays within its matrix", () => {
    expect(clamped({ row: -5, column: 90, rows: 10, columns: 20 }, 50, 100)).toEqual({ row: 0, column: 80, rows: 10, columns: 20 });
    const view = zoomed({ row: 0, column: 0, rows: 100, columns: 100 }, 100, 100, 2, 50, 20);
    expect(view).toEqual({ row: 10, column: 25, rows: 50, columns: 50 });
    expect(zoomed(view, 100, 100, 0.01, 50, 20)).toEqual({ row: 0, column: 0, rows: 100, columns: 100 });
  });
});

it("small multiples fill their box", () => {
  expect(multiples(1, 100, 50, 3)).toEqual({ across: 1, down: 1 });
  expect(multiples(4, 100, 100, 0)).toEqual({ across: 2, down: 2 });
  for (const n of [3, 12, 32]) {
    const { across, down } = multiples(n, 140, 60, 2);
    expect(across * down).toBeGreaterThanOrEqual(n);
  }
});
