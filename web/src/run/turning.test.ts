import { describe, expect, it } from "vitest";
import { frequency } from "./turning";

describe("a rotation's speeds", () => {
  const plain = { theta: 100, width: 8 }, speeds = (more: object): number[] => [0, 1, 2, 3].map((pair) => frequency({ ...plain, ...more }, pair, 5));
  it("stop after the pairs that turn", () => expect(speeds({ scaling: "proportional", turning: 2, factor: 2 })).toEqual([0.5, frequency(plain, 1, 5) / 2, 0, 0]));
  it("are negative backwards", () => expect(speeds({ backwards: true })).toEqual(speeds({}).map((speed) => -speed)));
});
