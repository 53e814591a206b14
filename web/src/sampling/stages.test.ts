import { describe, expect, it } from "vitest";
import { OFF, drawToken, stages, type Sampling } from "./stages";
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
