// Settings that are tried on a step's logits, in a worker: the newest setting is the next one that it computes, those between are left out.
// Where a browser refuses workers the page computes, with the same function.

import { untrack } from "svelte";
import { sampled, type Cumulative, type Logits, type Sampled } from "./sampled";
import type { Sampling } from "./stages";
import type { Done, Work } from "./worker";
import Own from "./worker?worker&inline"; // its script is within the page's own, so that a page in one file has it

// of: names the logits, so that no setting is shown of others.
export interface Trial { of: string; logits: Logits; setting: Sampling }

let refused = false; // a browser that has refused one worker is asked for no other

function start(): Worker | undefined {
  if (refused || typeof Worker === "undefined") return undefined;
  try {
    return new Own();
  } catch {
    refused = true;
    return undefined;
  }
}

// shown: what the newest setting gave that is computed; waiting: it is an earlier one.
export function sampling(question: () => Trial | undefined): { readonly shown: Sampled | undefined; readonly waiting: boolean } {
  let got: { of: string; asked: Trial; value: Sampled } | undefined = $state.raw();
  let worker: Worker | undefined, has = "", asked: Trial | undefined, next: Trial | undefined, curve: Cumulative | null = null; // has: whose logits the worker has; curve: the last that it sent
  const trial = $derived(question());

  const show = (own: Trial, value: Sampled): void => { got = { of: own.of, asked: own, value }; };
  function ask(own: Trial): void {
    worker ??= start();
    if (!worker) return show(own, sampled(own.logits, own.setting));
    if (asked) { next = own; return; }
    asked = own;
    worker.onmessage = ({ data }: MessageEvent<Done>): void => {
      const done = asked, after = next;
      asked = next = undefined;
      if (data.curve !== undefined) curve = data.curve;
      if (done) show(done, { ...data, curve });
      if (after) ask(after);
    };
    worker.onerror = (e): void => { // refused by a policy, which a browser may say as late as here
      e.preventDefault();
      refused = true;
      worker?.terminate();
      const open = next ?? asked;
      worker = asked = next = undefined;
      if (open) ask(open);
    };
    worker.postMessage((has === own.of ? { setting: own.setting } : { logits: own.logits, setting: own.setting }) satisfies Work);
    has = own.of;
  }

  $effect(() => {
    const own = trial;
    if (own) untrack(() => ask(own));
  });
  $effect(() => () => worker?.terminate());
  const shown = $derived(got !== undefined && got.of === trial?.of ? got : undefined);
  return { get shown() { return shown?.value; }, get waiting() { return shown?.asked !== trial; } };
}
