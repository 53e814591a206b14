// A prompt as ids: the text's own, and around them those of the tokenizer's post-processor. An encoder's text may name control tokens.

import type { ControlToken, LiveDocument } from "./present";
import type { Tokenizer } from "./tokenizer";

export function idsOf(text: string, tokenizer: Tokenizer, { around: [before, after], control, pieces }: LiveDocument): number[] {
  if (!control) return [...before, ...tokenizer.encode(text), ...after];
  const mask = control.mask === null ? null : (pieces[control.mask] ?? null), ids: number[] = [];
  let begins = true, rest = mask === null ? text : text.replace(/_{3,}/g, () => mask);
  for (let named = next(rest, control.tokens); named; named = next(rest, control.tokens)) {
    const { token, at } = named, own = rest.slice(0, at), behind = rest.slice(at + token.content.length);
    ids.push(...tokenizer.encode(token.lstrip ? own.replace(/\p{White_Space}+$/u, "") : own, begins), token.id);
    begins = false;
    rest = token.rstrip ? behind.replace(/^\p{White_Space}+/u, "") : behind;
  }
  return [...before, ...ids, ...tokenizer.encode(rest, begins), ...after];
}

// The control token that a text names first; of two at one place the longer.
function next(text: string, tokens: readonly ControlToken[]): { token: ControlToken; at: number } | undefined {
  const named = tokens.map((token) => ({ token, at: text.indexOf(token.content) })).filter(({ at }) => at >= 0);
  return named.sort((a, b) => a.at - b.at || b.token.content.length - a.token.content.length)[0];
}
