// Steps that are reached one after another, by hand, by the arrow keys or by play, and what moves as each is reached.

import { tick } from "svelte";
import { MediaQuery } from "svelte/reactivity";
import { lasts } from "../motion";

export type Moves = [Element, Keyframe[]][];

export const appears: Keyframe[] = [{ opacity: 0 }, { opacity: 1 }];
export const moved = (e: Element, frames: Keyframe[]): Animation => e.animate(frames, { duration: lasts(e, "--move-stage"), easing: "ease-in-out" });

export abstract class Play {
  at = $state(0); // steps that are reached, 0: none is taken and everything is shown
  playing = $state(false);
  still = new MediaQuery("prefers-reduced-motion: reduce");
  private timer = 0;

  abstract get count(): number; // steps
  abstract get name(): string; // of the step that is reached, "" for none
  protected abstract get rest(): number; // ms between two steps of a play
  // What moves as a step is reached, which the page shows already. onwards: it is the step after the one before.
  protected abstract moves(onwards: boolean): Moves;

  async go(at: number): Promise<void> {
    const onwards = at === this.at + 1;
    this.at = Math.min(Math.max(0, at), this.count);
    await tick();
    const moves = this.moves(onwards); // all places are read before anything moves
    if (!this.still.current) await Promise.allSettled(moves.map(([e, frames]) => moved(e, frames).finished));
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
      await this.go(this.at >= this.count ? 1 : this.at + 1);
      if (this.playing && this.at < this.count) this.timer = window.setTimeout(() => void next(), this.rest);
      else this.playing = false;
    };
    void next();
  }

  halt(): void {
    clearTimeout(this.timer);
    this.playing = false;
  }

  press(e: KeyboardEvent): void {
    const to = { ArrowRight: Math.min(this.count, this.at + 1), ArrowLeft: Math.max(0, this.at - 1), Home: Math.min(1, this.count), End: this.count, Escape: 0 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.turn(to);
  }
}
