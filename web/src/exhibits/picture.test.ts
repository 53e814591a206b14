import { describe, expect, it } from "vitest";
import { parsed, changeText, read as readEdits, written as writtenEdits } from "../run/edits";
import { read as readPlace } from "../link";
import { address, read, written } from "./address";
import { besidePoints } from "./names";
import { axis, letters, lined, nested, packed, shortened, spread, writer, type Spot } from "./picture";

const box = (name: string, depth: number) => ({ name, note: "", depth: depth, marked: false });

describe("pictures of exhibits", () => {
  it("put boxes beside each other in reading order, none on another", () => {
    const gap = { wide: 10, high: 10 }, sides = [150, 700, 90, 300, 250, 450, 120];
    const boxes = Array.from({ length: 40 }, (_, i) => ({ wide: sides[i % 7] ?? 0, high: sides[(3 * i + 2) % 7] ?? 0 }));
    const sound = (spots: readonly Spot[]): boolean => boxes.map((b, i) => ({ ...b, ...(spots[i] ?? { x: 0, y: 0 }) })).every((a, i, all) => {
      const before = all[i - 1], free = all.slice(0, i).every((b) => a.x >= b.x + b.wide + 10 || b.x >= a.x + a.wide + 10 || a.y >= b.y + b.high + 10 || b.y >= a.y + a.high + 10);
      return free && a.x >= 0 && a.y >= 0 && a.x + a.wide <= 900 && (!before || a.y >= before.y);
    });
    const spots = packed(boxes, 900, gap);
    expect(sound(spots)).toBe(true);
    const mutants = [packed(boxes, 900, { wide: 0, high: 0 }), packed(boxes, 1200, gap), spots.map((s) => ({ ...s, y: -s.y }))];
    expect(mutants.map(sound)).toEqual([false, false, false]);
    expect(packed([{ wide: 400, high: 100 }, { wide: 400, high: 300 }, { wide: 300, high: 100 }, { wide: 80, high: 50 }], 900, gap)).toEqual([{ x: 0, y: 0 }, { x: 410, y: 0 }, { x: 0, y: 110 }, { x: 310, y: 110 }]);
    expect(packed([{ wide: 900, high: 500 }, { wide: 1000, high: 90 }, { wide: 10, high: 10 }], 900, gap)).toEqual([{ x: 0, y: 0 }, { x: 0, y: 510 }, { x: 0, y: 610 }]);
  });
  it("write counts integers and other numbers as every number", () => {
    expect([194, null, "all"].map(writer([194, null, "all"]))).toEqual(["194", "", "all"]);
    expect([1050624, -12345].map(writer([1050624, -12345]))).toEqual(["1,050,624", "-12,345"]);
    expect([194, 0.25].map(writer([194, 0.25]))).toEqual(["194.0", "0.250"]);
  });
  it("place numbers on an axis", () => {
    const plain = axis([2, 6], 100, 0, true), far = axis([1, 10, 10000], 0, 400), narrow = axis([5, 5.1], 0, 10, true), alone = axis([3], 0, 10);
    expect([plain.low, plain.at(0), plain.at(3), plain.at(6)]).toEqual([0, 100, 50, 0]);
    expect([far.log, far.at(1), far.at(10), far.at(10000)]).toEqual([true, 0, 100, 400]);
    expect([narrow.low, narrow.log]).toEqual([5, false]);
    expect(alone.at(3)).toBe(5);
  });
  it("keep names apart, and above the bottom", () => {
    expect(spread([10, 12, 90], 14, 100)).toEqual([10, 24, 90]);
    expect(spread([95, 96], 14, 100)).toEqual([86, 100]);
    expect(spread([96, 95], 14, 100)).toEqual([100, 86]);
  });
  it("name points on no other name and on no point", () => {
    const frame = { left: 0, right: 460, top: 0, bottom: 340 }, points = Array.from({ length: 60 }, (_, i) => ({ x: 150 + 90 * Math.cos(i * i), y: 170 + 70 * Math.sin(3 * i), name: `word ${i}` }));
    const spots = besidePoints(points, points, frame, [], [[150, 170, 240, 170]]), boxes = spots.flatMap((s) => (s ? [s.box] : []));
    const upon = (all: typeof boxes): number => all.reduce((n, a, i) => n + all.slice(i + 1).filter((b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom).length, 0);
    expect([boxes.length > 35, upon(boxes)]).toEqual([true, 0]);
    expect(boxes.filter((b) => points.some(({ x, y }) => x > b.left && x < b.right && y > b.top && y < b.bottom))).toEqual([]);
    expect(boxes.every((b) => b.left >= 0 && b.right <= 460 && b.top >= 0 && b.bottom <= 340)).toBe(true);
    expect(upon(points.map(({ x, y }) => ({ left: x + 8, right: x + 60, top: y - 8, bottom: y + 7 })))).toBeGreaterThan(20); // the mutant: each right of its point
    const same = { x: 50, y: 50, name: "1.0" }, two = besidePoints([same, same], [same], frame, [], []);
    expect([two[0]?.far, two[1]?.far, two[0]?.x === two[1]?.x]).toEqual([false, false, false]);
    expect(besidePoints([{ ...same, name: "a name that is wider than all of it" }], [], { ...frame, right: 100 }, [], [])).toEqual([null]);
  });
  it("shorten names by the room that they take", () => {
    expect([letters("a残差"), shortened("a残差连接", 9), shortened("a残差连接", 7), shortened("with norms", 6)]).toEqual([5, "a残差连接", "a残差…", "with …"]);
  });
  it("stand two in a row", () => {
    expect(lined([false, false, true, false, true, false])).toEqual([[0, 1], [2], [3], [4], [5]]);
  });
  it("lay boxes in one another", () => {
    const tree = nested([box("block", 0), box("attn", 1), box("q", 2), box("ffn", 1), box("head", 0)]);
    expect(tree.map((t) => t.box.name)).toEqual(["block", "head"]);
    expect(tree[0]?.inner.map((t) => [t.box.name, t.inner.length])).toEqual([["attn", 1], ["ffn", 0]]);
  });
});

describe("an exhibit in an address", () => {
  const controls = [{ name: "prompt", title: "", value: "a", options: [] }, { name: "seed", title: "", value: 1, options: [] }];
  it("holds what differs from its own settings", () => {
    expect(written({ prompt: "a", seed: 1 }, controls)).toBe("");
    expect(read(written({ seed: 2, prompt: "b", other: "c" }, controls))).toEqual({ prompt: "b", seed: 2 });
  });
  it("reads no more than texts and numbers", () => {
    for (const text of ["", "[1]", "{", "null", "3"]) expect(read(text)).toEqual({});
    expect(read('{"a": null, "b": [1], "c": "d"}')).toEqual({ c: "d" });
  });
  it("says where a run opens", () => {
    const run = { model: "m", prompt: "p q", switches: ["norm=none", "a=1"], changes: [], steps: 3, dtype: "float32" };
    expect(readPlace(address(run) ?? "")).toMatchObject({ view: "life", model: "m", prompt: "p q", with: "norm=none; a=1", steps: 3, edits: "" });
    const changed = readPlace(address({ ...run, changes: ["layers.0.ffn = 0", "layers.1.attn.z[H=3, T=-1] *= 0.5"] }) ?? "");
    expect(changed.view).toBe("change");
    expect(readEdits(changed.edits).map(changeText)).toEqual(["layers.0.ffn = 0", "layers.1.attn.z[H=3, T=-1] *= 0.5"]);
    expect(readEdits(readPlace(address({ ...run, changes: ["layers.1.ffn = layers.1.ffn_norm"] }) ?? "").edits)[0]?.how).toBe("tensor");
    expect(address({ ...run, changes: ["layers.0.out += steer.safetensors"] })).toBeUndefined();
  });
});

describe("changes as edits", () => {
  it("keep their text", () => {
    for (const text of ["layers.0.ffn = 0", "layers.2.attn.z[0,1:3,:] *= 0.5", 'layers.1.out[T=4:] = from "The \\"capital\\""', "a.b[H=0] = -1", "layers.1.ffn = layers.1.ffn_norm", "layers.2.out[T=1:] += layers.0.out", "layers.1.attn.q.in[:,2,:] *= 0.5", "layers.0.attn.scores[T=4, S=3] = -inf"]) {
      const edit = parsed(text);
      expect(edit && changeText(edit)).toBe(text);
      expect(edit && readEdits(writtenEdits([edit]))).toEqual([edit]);
    }
  });
  it("are none where the text is another", () => {
    for (const text of ["", "layers.0.ffn", "a += 1", "a = inf", "a *= -inf", "a = -infx", "a without b.safetensors", 'a[T="x"] = 0', 'a *= from "b"', "a = b", 'a = from "b" [T=1]']) expect(parsed(text)).toBeUndefined();
  });
});
