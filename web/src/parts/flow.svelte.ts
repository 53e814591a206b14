// The map's marks in the order in which the run computed them: block by block what is read, then what is added. Played step by step by
// hand; and once, when a run comes, by itself: of a prompt every row, of one more token its row alone.

import type { MapDocument } from "../run/map_documents";
import { appears, moved, Play, type Moves } from "./play.svelte";

// start: the vectors of the tokens; reads: ribbons; adds: swellings, and the band that leaves the block; answer: the ways to the candidates.
export type Kind = "start" | "reads" | "adds" | "answer";
export interface FlowStep { kind: Kind; panel: number; block: number }

// own: the run's later steps compute a row of the last stack alone. answer: there are candidates.
export function stepsOf(map: MapDocument, own: boolean, answer: boolean): FlowStep[] {
  const last = map.stacks.length - 1;
  return [
    ...map.stacks.flatMap((stack, panel): FlowStep[] => own && panel < last ? [] : [
      { kind: "start", panel, block: -1 },
      ...stack.blocks.flatMap((b, block): FlowStep[] => [...(b.edges.length + b.crossed.length > 0 ? [{ kind: "reads" as const, panel, block }] : []), { kind: "adds", panel, block }]),
    ]),
    ...(answer ? [{ kind: "answer" as const, panel: last, block: -1 }] : []),
  ];
}

export const flowOf = ({ kind, panel, block }: FlowStep): string => (kind === "answer" ? kind : kind === "start" ? `${kind},${panel}` : `${kind},${panel},${block}`);

const wipes: Keyframe[] = [{ clipPath: "inset(-99px 100% -99px -9px)" }, { clipPath: "inset(-99px -9px -99px -9px)" }]; // from left to right
const frames = (e: Element): Keyframe[] => (e.querySelector("text") || e.tagName === "text" ? appears : wipes);

// The row that a mark is of; undefined for what is of the row of the answer alone.
function rowOf(e: Element): number | undefined {
  const { edge, crossed, cell, feed, start } = (e as SVGElement).dataset, text = (edge ?? crossed)?.split(",")[2] ?? (cell ?? feed ?? start)?.split(",").at(-1);
  return text === undefined ? undefined : Number(text);
}

const LONG = 12_000, REST = [120, 900] as const, ALONE = 900, PACE = 90; // ms: of a play, and between two of its steps; of what comes by itself, and at most between two steps
let arrived = ""; // the run that came last

export class Flow extends Play {
  private waiting = 0;

  // root: the picture; row: of the token that the answer follows; own: that row alone is computed, the others are of earlier steps.
  constructor(readonly of: () => { steps: readonly FlowStep[]; root: Element | undefined; row: number; own: boolean }) { super(); }

  get count(): number { return this.of().steps.length; }
  get step(): FlowStep | undefined { return this.of().steps[this.at - 1]; }
  get name(): string { return this.step ? flowOf(this.step) : ""; }
  protected get rest(): number { return Math.min(REST[1], Math.max(REST[0], LONG / this.count)); }

  // The marks of a step: groups, or of one row its own.
  private marks(step: FlowStep): Element[] {
    const { root, row, own } = this.of(), groups = [...(root?.querySelectorAll(`[data-flow="${flowOf(step)}"]`) ?? [])];
    return own ? groups.flatMap((g) => [...g.children].filter((e) => (rowOf(e) ?? row) === row)) : groups;
  }

  // Everything is shown up to a step; what comes after it waits.
  private show(reached: number): void {
    this.of().steps.forEach((step, i) => { for (const e of this.marks(step)) e.toggleAttribute("data-waits", i >= reached); });
  }

  protected moves(onwards: boolean): Moves {
    this.stop();
    if (this.at > 0) this.show(this.at);
    const step = this.step;
    return onwards && step ? this.marks(step).map((e) => [e, frames(e)]) : [];
  }

  // Once for a run: its marks come by themselves.
  arrive(run: string): void {
    if (run === arrived || this.still.current) return;
    arrived = run;
    const { steps } = this.of(), pace = Math.min(PACE, ALONE / steps.length);
    this.show(0);
    const next = (i: number): void => {
      const step = steps[i];
      if (!step) return;
      for (const e of this.marks(step)) {
        e.removeAttribute("data-waits");
        moved(e, frames(e));
      }
      this.waiting = window.setTimeout(() => next(i + 1), pace);
    };
    next(0);
  }

  // What still waits is shown.
  stop(): void {
    clearTimeout(this.waiting);
    for (const e of this.of().root?.querySelectorAll("[data-waits]") ?? []) e.removeAttribute("data-waits");
  }
}
