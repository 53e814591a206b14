// One query's row on its way through the stages of attention, and how its cells come there.

import { appears, Play, type Moves } from "./play.svelte";

export type Step = "dots" | "scores" | "mask" | "shares" | "weigh" | "sum";
const STAGES: Record<Step, string> = { dots: "dots", scores: "scores", mask: "scores", shares: "shares", weigh: "values", sum: "values" }; // where a step is seen

const middle = (e: Element): [number, number] => { const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; };
const comes = (x: number, y: number): Keyframe[] => [{ transform: `translate(${x}px, ${y}px)`, opacity: 0.6 }, { transform: "none", opacity: 1 }];
// From the place of one element to that of another.
const from = (start: Element | null, e: Element): [Element, Keyframe[]] => {
  const [x, y] = start ? middle(start) : middle(e), [a, b] = middle(e);
  return [e, comes(x - a, y - b)];
};

// What moves when a step is reached: cells of the row from the stage before; what the mask hides, where it is; shares to their values; a sum from its parts.
export function movesOf(root: Element, step: Step, before: Step | undefined, row: number): Moves {
  const cells = (stage: string): Element[] => [...root.querySelectorAll(`[data-stage="${stage}"] [data-cell^="${row},"]`)];
  if (step === "mask") return cells("scores").filter((e) => e.querySelector("[data-hidden]")).map((e) => [e, appears]);
  if (step === "weigh") return [
    ...[...root.querySelectorAll("[data-stage=values] [data-weighs]")].map((e) => from(root.querySelector(`[data-stage=shares] [data-cell="${row},${e.getAttribute("data-weighs")}"]`), e)),
    ...[...root.querySelectorAll("[data-products]")].map((e): [Element, Keyframe[]] => [e, appears])];
  if (step === "sum") {
    const own = root.querySelector("[data-sum]"), parts = [...root.querySelectorAll("[data-products]")];
    return own ? [from(parts[Math.floor(parts.length / 2)] ?? null, own)] : [];
  }
  const stage = before === "mask" ? "scores" : before;
  return cells(step).map((e) => (stage ? from(root.querySelector(`[data-stage="${stage}"] [data-cell="${e.getAttribute("data-cell")}"]`), e) : [e, appears]));
}

export class Walk extends Play {
  // steps: of this head; root: what holds the stages; row: of the query.
  constructor(readonly of: () => { steps: readonly Step[]; root: Element | undefined; row: number }) { super(); }

  get count(): number { return this.of().steps.length; }
  get step(): Step | undefined { return this.of().steps[this.at - 1]; }
  get name(): string { return this.step ?? ""; }
  protected get rest(): number { return 900; }
  // True once a step is reached, and while none is taken.
  reached(step: Step): boolean { return this.at === 0 || this.of().steps.indexOf(step) < this.at; }

  protected moves(onwards: boolean): Moves {
    const { root, row, steps } = this.of(), step = this.step;
    if (!onwards || !root || !step) return [];
    root.querySelector(`[data-stage="${STAGES[step]}"]`)?.closest("li")?.scrollIntoView({ block: "nearest", behavior: "instant" }); // stages may stand below one another
    return movesOf(root, step, steps[this.at - 2], row);
  }
}
