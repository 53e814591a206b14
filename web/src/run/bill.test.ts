import { describe, expect, it } from "vitest";
import { devices, fullest, meant, OFF, query, read, settled, viewed, written, type Ranks, type Setting, type Situation } from "./bill";

const SITUATION: Situation = { id: "s", model: "m-1", context: 131_072, batch: 8, dtype: "fp8", cache: "bfloat16", device: "d", split: { tp: 2, pp: 3, ep: 8 } };

describe("a setting of the budget", () => {
  it("is the same after it was written and read", () => {
    const s: Setting = { ...meant(SITUATION, OFF), price: 3.5, train: true, lora: 8, recompute: true, shards: 4, beside: ["a", "b.c-1"], along: "batch", curve: "next" };
    expect(read(written(s))).toEqual(s);
    expect(written(OFF)).toBe("");
    expect(read("")).toEqual(OFF);
  });

  it("takes nothing from a link that it would not write", () => {
    const wild = "of:../x context:-1 batch:1e9 dtype:nix cache:7 device:<b> tp:0 pp:1.5 ep:x price:-3 lora:-1 shards:0 train:yes along:layers curve:__proto__ beside:a,<i>,a constructor:1 __proto__:2";
    expect(read(wild)).toEqual({ ...OFF, beside: ["a"] });
  });

  it("asks for what is set and for nothing else", () => {
    expect(query(settled(OFF, ""))).toEqual({ batch: 1, dtype: "bfloat16", cache: "bfloat16" });
    expect(query(settled(OFF, "float32"))).toEqual({ batch: 1, dtype: "float32", cache: "float32" });
    expect(settled({ ...OFF, dtype: "int8" }, "float32").dtype).toBe("int8");
    expect(viewed(OFF)).toEqual({});
    expect(viewed({ ...OFF, price: 2 })).toEqual({}); // a price needs a device
    const s = meant(SITUATION, { ...OFF, price: 2, beside: ["a"] });
    expect([query(s), viewed(s)]).toEqual([{ batch: 8, dtype: "fp8", cache: "bfloat16", device: "d", context: 131_072 }, { ranks: "tp=2,pp=3,ep=8", price: 2 }]);
    expect([devices(s), s.beside]).toEqual([24, ["a"]]);
    expect(viewed({ ...OFF, lora: 8 })).toEqual({});
    expect(viewed({ ...OFF, train: true, lora: 8, shards: 2 })).toEqual({ train: "true", lora: 8, shards: 2 });
    expect(query({ ...OFF, dtype: "int4" })["cache"]).toBe("bfloat16");
  });

  it("knows the stage that holds most", () => {
    const stages = [[3, 4], [5, 9], [9, 1]].map(([weights = 0, cache = 0]) => ({ layers: [0, 1] as [number, number], parameters: 0, weights, cache, sent: {} }));
    expect(fullest({ ranks: 3, split: { tp: 1, pp: 3, ep: 1 }, stages } satisfies Ranks)).toBe(1);
  });
});
