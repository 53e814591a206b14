// One query's row on its way through the stages of attention: which step is reached, by hand or by play, and how its cells come there.

import { tick } from "svelte";
import { MediaQuery } from "svelte/reactivity";
import { lasts } from "../motion";

export type Step = "dots" | "scores" | "mask" | "shares" | "weigh" | "sum";
const STAGES: Record<Step, string> = { dots: "dots", scores: "scores", mask: "scores", shares: "shares", weigh: "values", sum: "values" }; // where a step is seen
const REST = 900; // ms between two steps of a play

type Moves = [Element, Keyframe[]][];

const middle = (e: Element): [number, number] => { const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; };
const comes = (x: number, y: number): Keyframe[] => [{ transform: `translate(${x}px, ${y}px)`, opacity: 0.6 }, { transform: "none", opacity: 1 }];
const appears: Keyframe[] = [{ opacity: 0 }, { opacity: 1 }];
// From the place of one element to that of another.
const from = (start: Element | null, e: Element): [Element, Keyframe[]] => {
  const [x, y] = start ? middle(start) : middle(e), [a, b] = middle(e);
  return [e, comes(x - a, y - b)];
};
const moved = (e: Element, frames: Keyframe[]): Animation => e.animate(frames, { duration: lasts(e, "--move-stage"), easing: "ease-in-out" });

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

export class Walk {
  at = $state(0); // steps that are reached, 0: none is taken and all rows are shown
  playing = $state(false);
  still = new MediaQuery("prefers-reduced-motion: reduce");
  timer = 0;

  // steps: of this head; root: what holds the stages; row: of the query.
  constructor(readonly of: () => { steps: readonly Step[]; root: Element | undefined; row: number }) {}

  get step(): Step | undefined { return this.of().steps[this.at - 1]; }
  // True once a step is reached, and while none is taken.
  reached(step: Step): boolean { return this.at === 0 || this.of().steps.indexOf(step) < this.at; }

  async go(at: number): Promise<void> {
    const on = at === this.at + 1, { steps, row } = this.of();
    this.at = Math.min(Math.max(0, at), steps.length);
    await tick();
    const { root } = this.of(), step = steps[this.at - 1];
    if (!on || !root || !step) return;
    root.querySelector(`[data-stage="${STAGES[step]}"]`)?.closest("li")?.scrollIntoView({ block: "nearest", behavior: "instant" }); // stages may stand below one another
    if (this.still.current) return;
    const moves = movesOf(root, step, steps[this.at - 2], row); // all places are read before anything moves
    await Promise.allSettled(moves.map(([e, frames]) => moved(e, frames).finished));
  }

  // By hand: the play ends.
  turn(at: number): void {
    this.halt();
    void this.go(at);
  }

  play(): void {
    if (this.playing) return this.halt();
    this.playing = true;
    const next = async (): Promise<void> => {
      await this.go(this.at >= this.of().steps.length ? 1 : this.at + 1);
      if (this.playing && this.at < this.of().steps.length) this.timer = window.setTimeout(() => void next(), REST);
      else this.playing = false;
    };
    void next();
  }

  halt(): void {
    clearTimeout(this.timer);
    this.playing = false;
  }

  press(e: KeyboardEvent): void {
    const last = this.of().steps.length, to = { ArrowRight: Math.min(last, this.at + 1), ArrowLeft: Math.max(0, this.at - 1), Home: Math.min(1, last), End: last, Escape: 0 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.turn(to);
  }
}
