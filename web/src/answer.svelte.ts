// An answer under its question's key. A new key drops the old answer at once, even if the next one takes long.

import { untrack } from "svelte";
import { messageOf } from "./state.svelte";

// key: everything the answer depends on; scope: the part of the key under which an earlier answer may still be shown, dimmed, until this
// one comes; when: false asks nothing; ask: fetches it, and `wanted()` is false once another key has replaced this one.
export interface Question<T> { key: string; scope?: string; when?: boolean; ask: (wanted: () => boolean) => Promise<T> }

// value: of this key; shown: the value, or an earlier one of the same scope while waiting; fault: the error's message.
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
