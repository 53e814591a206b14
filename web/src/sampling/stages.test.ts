import { describe, expect, it } from "vitest";
import { OFF, descending, drawToken, ranked, stages, type Sampling } from "./stages";
import { uniform } from "./uniform";
import vectors from "./vectors.json";

const history = { prompt: vectors.prompt, output: vectors.output };

describe("the engine's numbers", () => {
  it.each(vectors.uniform)("of seed $seed at step $step", ({ seed, step, value }) => expect(uniform(seed, step)).toBe(value));

  it.each(vectors.cases)("of $sampling", ({ sampling, stages: expected, picks }) => {
    const s: Sampling = { ...OFF, ...sampling }, made = stages(vectors.logits, s, history);
    expect(made.map((m) => m.name)).toEqual(expected.map((t) => t.name));
    expected.forEach(({ name, values }, i) => {
      const own = made[i]?.values ?? new Float64Array();
      values.forEach((x, id) => {
        const expected = x ?? -Infinity;
        if (name === "probabilities") expect(Math.abs((own[id] ?? NaN) - expected)).toBeLessThan(1e-15);
        else expect(own[id], `${name} of ${id}`).toBe(expected);
      });
    });
    picks.forEach((id, n) => expect(drawToken(stages(vectors.logits, s, { ...history, output: history.output.slice(0, n) }), s, n).id).toBe(id));
  });
});

it("gives every token its span of the draw", () => {
  const s = { ...OFF, seed: 4 }, found = drawToken(stages([0, 0, 0, 0], s, { prompt: [], output: [] }), s, 0);
  expect(found.u).toBe(uniform(4, 0));
  expect([found.low, found.high]).toEqual([found.id / 4, (found.id + 1) / 4]);
});

it("keeps its order through a temperature, and cuts equal numbers by their ids", () => {
  let state = 7;
  const draw = (): number => (state = (state * 48271) % 2147483647) / 2147483647;
  const nothing = { prompt: [], output: [] };
  let split = 0; // cuts that a prefix of the order would get wrong
  for (const temperature of [1e-30, 1e-9, 0.01, 0.7, 1, 3, 1e9]) {
    const logits = Float64Array.from({ length: 300 }, (_, i) => Math.fround(i === 5 ? 1000 : i % 3 === 0 ? Math.floor(5 * draw()) : 2 + 1e-6 * draw())); // many are equal, and more behind a temperature
    const scaled = stages(logits, { ...OFF, temperature }, nothing).find((m) => m.name === (temperature === 1 ? "logits" : "temperature"))?.values ?? new Float64Array(), sorted = ranked(scaled);
    const order = descending(stages(logits, { ...OFF, temperature }, nothing));
    expect([...order].map((id) => scaled[id])).toEqual([...sorted].map((id) => scaled[id]));
    for (const k of [1, 2, 7, 100, 150, 299, 300, 400]) {
      const kept = stages(logits, { ...OFF, temperature, top_k: k, top_p: 0.999999 }, nothing), cut = kept.find((m) => m.name === "top_k");
      expect([...(cut?.values ?? [])].flatMap((x, id) => (x > -Infinity ? [id] : [])), `${temperature} ${k}`).toEqual([...sorted.subarray(0, k)].sort((a, b) => a - b));
      expect(cut?.kept).toBe(Math.min(k, sorted.length));
      if (cut && [...order.subarray(0, k)].sort((a, b) => a - b).join() !== [...sorted.subarray(0, k)].sort((a, b) => a - b).join()) split++;
    }
  }
  expect(split).toBeGreaterThan(5);
});

describe("ranks", () => {
  let state = 1;
  const draw = (): number => (state = (state * 48271) % 2147483647) / 2147483647;
  const sorted = (x: readonly number[]): number[] => x.map((_, id) => id).filter((id) => (x[id] ?? NaN) > -Infinity).sort((a, b) => (x[b] ?? 0) - (x[a] ?? 0) || a - b);
  const near = 1 + 2 ** -40; // the same float32 as 1
  it.each([
    ["numbers of both signs", Array.from({ length: 5000 }, () => (draw() - 0.5) * 10 ** (12 * draw() - 6))],
    ["many equals", Array.from({ length: 5000 }, () => Math.floor(9 * draw()) - 4)],
    ["what float32 cannot tell apart", Array.from({ length: 500 }, (_, i) => [1, near, 1 - 2 ** -40, -near, -1][i % 5] ?? 0)],
    ["the ends of the numbers", [0, -0, 5e-324, -5e-324, 1e300, -1e300, Infinity, -Infinity, 3e38, -3e38, 1e-45, -1e-45]],
    ["nothing", []],
  ])("%s as a comparing sort does", (_, x) => expect([...ranked(x)]).toEqual(sorted(x)));
});

// The cuts by their definition: one number after another from the likeliest down, of equal ones the lowest id first.
function cut(x: Float64Array, s: Sampling): { kept: number[]; shares: Map<number, number> } {
  let kept = [...ranked(x)];
  const top = x[kept[0] ?? 0] ?? 0, power = (id: number): number => Math.exp((x[id] ?? 0) - top), total = (): number => [...kept].sort((a, b) => a - b).reduce((n, id) => n + power(id), 0);
  if (s.top_k !== OFF.top_k) kept = kept.slice(0, s.top_k);
  if (s.top_p !== OFF.top_p) {
    const goal = s.top_p * total();
    let mass = 0, k = 0;
    while (k < kept.length && (k === 0 || mass < goal)) mass += power(kept[k++] ?? 0);
    kept = kept.slice(0, k);
  }
  if (s.min_p !== OFF.min_p) kept = kept.filter((id) => (x[id] ?? 0) >= Math.fround(top + Math.log(s.min_p)));
  const all = total();
  return { kept: kept.sort((a, b) => a - b), shares: new Map(kept.map((id) => [id, power(id) / all])) };
}

describe("a cut is a place in the order", () => {
  let state = 3;
  const draw = (): number => (state = (state * 48271) % 2147483647) / 2147483647;
  const nothing = { prompt: [], output: [] };
  it.each([["few equals", 1e4], ["many", 4]])("with %s", (_, kinds) => {
    const x = Float64Array.from({ length: 3000 }, () => Math.fround(Math.floor(kinds * draw()) / kinds * 6)), counts = new Set<number>();
    let tied = 0; // cuts among equals
    for (const top_k of [0, 1, 7, 150, 1500, 3000]) for (const top_p of [1, 0.05, 0.5, 0.99]) for (const min_p of [0, 0.01, 0.4]) {
      const s: Sampling = { ...OFF, top_k, top_p, min_p, seed: top_k }, made = stages(x, s, nothing), last = made.at(-1), slow = cut(x, s);
      const own = [...(last?.values ?? [])].flatMap((p, id) => (p > 0 ? [id] : []));
      expect(own, JSON.stringify(s)).toEqual(slow.kept);
      expect(last?.kept).toBe(slow.kept.length);
      for (const id of [0, 1, ...own.slice(0, 5), ...own.slice(-5)]) expect(last?.at(id)).toBe(slow.shares.get(id) ?? 0);
      const u = uniform(s.seed, 0), token = drawToken(made, s, 0);
      expect(token.low <= u && u < token.high && slow.shares.has(token.id)).toBe(true);
      counts.add(own.length);
      const least = Math.min(...own.map((id) => x[id] ?? 0));
      tied += x.some((y, id) => y === least && !slow.shares.has(id)) ? 1 : 0;
    }
    expect(counts.size).toBeGreaterThan(10);
    if (kinds === 4) expect(tied).toBeGreaterThan(20); // where the first of an order would be another choice
  });
});
