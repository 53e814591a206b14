import { describe, expect, it } from "vitest";
import { sampled, type Logits } from "./sampled";
import { OFF, drawToken, stages, type Sampling } from "./stages";
import vectors from "./vectors.json";

const history = { prompt: vectors.prompt, output: vectors.output };
const logits: Logits = { values: Float64Array.from(vectors.logits), wide: false, history };

describe("what is shown of a setting", () => {
  it.each(vectors.cases)("is of its stages: $sampling", ({ sampling, stages: expected, picks }) => {
    const s: Sampling = { ...OFF, ...sampling }, own = sampled(logits, s), drawn = s.temperature > 0;
    expect(own.setting).toBe(s);
    expect(own.stages.map((m) => m.name)).toEqual([...expected.map((m) => m.name), ...(drawn ? [] : ["probabilities"])]);
    expect(own.ids).toHaveLength(20);
    expect(own.ids).toContain(own.taken.id);
    expect(own.taken.id).toBe(picks.at(-1));
    expected.forEach(({ name, values }, i) => own.ids.forEach((id, row) => {
      const x = own.stages[i]?.values[row] ?? NaN, engine = values[id] ?? -Infinity;
      if (name === "probabilities") expect(Math.abs(x - engine)).toBeLessThan(1e-15);
      else expect(x).toBe(engine);
      if (name === "temperature") expect(own.stages[i]?.shown[row]).toBe((own.stages[i - 1]?.values[row] ?? NaN) / s.temperature);
    }));
    const all = stages(logits.values, s, history), token = drawToken(all, s, history.output.length);
    expect(own.taken).toEqual(token);
    if (drawn) expect(own.probability).toBe(all.at(-1)?.values[token.id]);
  });

  it("adds the chances up in their order", () => {
    const { curve, mass } = sampled(logits, { ...OFF, temperature: 0.7, top_k: 5 }), scaled = stages(logits.values, { ...OFF, temperature: 0.7 }, history).at(-1)?.values ?? new Float64Array();
    const sorted = [...scaled].sort((a, b) => b - a);
    let sum = 0;
    const shares = sorted.map((p) => (sum += p));
    expect(curve?.size).toBe(vectors.logits.length);
    expect(curve?.ranks).toEqual(sorted.map((_, i) => i + 1)); // few enough that each is drawn
    curve?.sums.forEach((x, i) => expect(Math.abs(x - (shares[i] ?? NaN))).toBeLessThan(1e-14));
    expect(mass).toBe(curve?.sums[4]);
  });

  it("draws of a wide vocabulary its first and last rank, and some hundreds between", () => {
    const values = Float64Array.from({ length: 20_000 }, (_, i) => Math.fround(Math.sin(i) * 3)), { curve } = sampled({ values, wide: false, history: { prompt: [], output: [] } }, OFF);
    expect([curve?.ranks[0], curve?.ranks.at(-1)]).toEqual([1, values.length]);
    expect(curve?.ranks.length).toBeLessThan(471);
    expect(curve?.sums.at(-1)).toBeCloseTo(1, 12);
    expect(curve?.ranks.every((rank, i) => rank > (curve.ranks[i - 1] ?? 0))).toBe(true);
  });
});
