// An answer that is read together with the question that it answers: as soon as another is asked there is none, however long the next one takes.

import { untrack } from "svelte";
import { messageOf } from "./state.svelte";

// key: what the answer depends on, all of it; within: the part of it under which an earlier answer may still stand, dimmed, until this one
// comes; when: whether it is asked for now; ask: wanted tells whether it is still waited for.
export interface Question<T> { key: string; scope?: string; when?: boolean; ask: (wanted: () => boolean) => Promise<T> }

// value: of this question; shown: that, or what stands dimmed while waiting; fault: why there is no value.
export interface Answer<T> { readonly value: T | undefined; readonly shown: T | undefined; readonly waiting: boolean; readonly fault: string }

export function answering<T>(question: () => Question<T>): Answer<T> {
  let got: { key: string; scope: string | undefined; value: T | undefined; fault: string } | undefined = $state.raw();
  const latest = $derived(question()), key = $derived(latest.key), scope = $derived(latest.scope), when = $derived(latest.when ?? true);
  $effect(() => {
    const mine = key, part = untrack(() => scope);
    if (!when || untrack(() => got?.key === mine)) return;
    let waiting = true;
    untrack(() => latest).ask(() => waiting).then(
      (value) => { if (waiting) got = { key: mine, scope: part, value, fault: "" }; },
      (e: unknown) => { if (waiting) got = { key: mine, scope: part, value: undefined, fault: messageOf(e) }; });
    return () => { waiting = false; };
  });
  const current = $derived(got?.key === key ? got : undefined);
  const shown = $derived(current ?? (scope !== undefined && got?.scope === scope ? got : undefined));
  return { get value() { return current?.value; }, get shown() { return shown?.value; }, get waiting() { return current === undefined; }, get fault() { return current?.fault ?? ""; } };
}
