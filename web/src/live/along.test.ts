import { describe, expect, it } from "vitest";
import { along } from "./along";

const z = (after: number[]) => ({ n: 3, path: "layers.0.attn.z", dims: "B T H K", shape: [1, 2, 2, 2], before: [1, 2, 3, 4, 5, 6, 7, 8], after });

describe("two runs by rows and heads", () => {
  it("are the shares of each head, and the cell that differs most", () => {
    const [one] = along([z([1, 2, 3, 5, 5, 6, 9, 8])]);
    expect(one?.axis).toBe("H");
    expect(one?.shares).toEqual([0, Math.sqrt((1 + 4) / (9 + 16 + 49 + 64))]);
    expect(one?.cells[1]).toEqual([0, 1, 1, 0]);
  });
  it("leave out what has no rows or heads, another shape, or too many", () => {
    expect(along([{ ...z([1]), after: [1] }, { ...z([]), path: "embed" }, { ...z([]), path: "layers.0.attn.q" }])).toEqual([]);
    const long = Array.from({ length: 65 }, () => 1);
    expect(along([{ n: 0, path: "layers.0.out", dims: "B T D", shape: [1, 65, 1], before: long, after: long }])).toEqual([]);
  });
});
