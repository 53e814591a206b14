// The page's sentences, from the project's files of messages. A key that either language lacks does not compile.

import english from "../../src/pellucid/messages/en.json";
import chinese from "../../src/pellucid/messages/zh.json";
import { visible } from "./hidden_letters";
import { settings } from "./settings.svelte";

export { visible };

export type Key = Extract<keyof typeof english, `page.${string}` | `axis.${string}` | `formula.${string}`>;
export type Language = "en" | "zh";

const WORDS: Record<Language, Record<Key, string>> = { en: english, zh: chinese };

export function say(key: Key, values: Record<string, string | number> = {}): string {
  return filled(WORDS[settings.language][key], values);
}

// A sentence with its values: "{count} {count:row|rows}" is "1 row" and "3 rows".
export function filled(sentence: string, values: Record<string, string | number>): string {
  return sentence.replace(/\{(\w+)(?::([^{}|]*)\|([^{}|]*))?\}/g, (placeholder, name: string, one?: string, several?: string) =>
    !(name in values) ? placeholder : one === undefined ? String(values[name]) : String((String(values[name]) === "1" ? one : several) ?? ""));
}

// Sentences one after another: in Chinese no blank follows a full stop.
export function paragraph(...sentences: string[]): string {
  return sentences.filter(Boolean).join(settings.language === "zh" ? "" : " ");
}

// Words one after another: "a, b, and c", "a、b和c".
export const joined = (words: readonly string[]): string => new Intl.ListFormat(settings.language).format(words);

// The meaning of an axis letter, "" for one that the legend lacks.
export function axis(letters: string): string {
  return (letters.match(/[A-Z]/g) ?? []).map((l) => (WORDS[settings.language] as Record<string, string>)[`axis.${l}`] ?? "").filter(Boolean).join(letters.includes("(") ? " × " : " + ");
}

// A token's piece; its id where the tokenizer has none for it, or there is no tokenizer.
export const pieceOf = (id: number, piece: string | undefined): string => visible(piece ?? "") || `#${id}`;
