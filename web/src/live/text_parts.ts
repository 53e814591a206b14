// The parts of a tokenizer that stand before its vocabulary: what a text is rewritten to, and where it is cut into words.

import { mapped } from "./charsmap";

export type Pattern = { String: string } | { Regex: string };
export type NormalizerPart =
  | { type: "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "Nmt" | "ByteLevel" }
  | { type: "Precompiled"; precompiled_charsmap: string }
  | { type: "Strip"; strip_left?: boolean; strip_right?: boolean }
  | { type: "Replace"; pattern: Pattern; content: string }
  | { type: "Prepend"; prepend: string }
  | { type: "BertNormalizer"; clean_text?: boolean; handle_chinese_chars?: boolean; strip_accents?: boolean | null; lowercase?: boolean };
export type WordPart =
  | { type: "ByteLevel"; add_prefix_space?: boolean; use_regex?: boolean }
  | { type: "Split"; pattern: Pattern; behavior: Behavior; invert?: boolean }
  | { type: "Metaspace"; mark: string; scheme: "always" | "first" | "never"; split: boolean }
  | { type: "Digits"; individual_digits?: boolean }
  | { type: "Punctuation"; behavior?: Behavior }
  | { type: "CharDelimiterSplit"; delimiter: string }
  | { type: "FixedLength"; length?: number }
  | { type: "UnicodeScripts"; scripts: [number, number][] }
  | { type: "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer" };
type Behavior = "Isolated" | "Removed" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";

// A letter for each byte: printable ones stand for themselves, the others follow from 256.
export const LETTERS: string[] = (() => {
  const plain = (b: number): boolean => (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0xad) || b >= 0xae;
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(plain(b) ? b : next++));
})();

// Unicode's white space, which differs from JavaScript's \s in U+0085 and U+FEFF.
const S = "\\p{White_Space}";
const BYTE_WORDS = new RegExp(`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${S}\\p{L}\\p{N}]+|${S}+(?!\\P{White_Space})|${S}+`, "gu");
const SPACES = new RegExp(`${S}+`, "gu"), SPACE = new RegExp(`^${S}$`, "u");
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/gu, DIGITS = /\p{N}+/gu, DIGIT = /\p{N}/gu;
const W = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}", WORD = new RegExp(`[${W}]+|[^${W}${S}]+`, "gu"); // \w as Rust has it
// What Moses' rules drop, and what they take for a space.
const DROPPED = /[\u0001-\u0008\u000b\u000e-\u001f\u007f\u008f\u009f]/gu, BLANK = /[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]/gu;
const HAN = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;

// A text as an expression that matches it alone.
export const literally = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
const expression = (pattern: Pattern): RegExp => new RegExp("Regex" in pattern ? pattern.Regex : literally(pattern.String), "gu");
// One character after another, as Rust does it: the last sigma of a word is no other letter.
const lower = (text: string): string => Array.from(text, (c) => c.toLowerCase()).join("");
const lettered = (text: string): string => Array.from(new TextEncoder().encode(text), (byte) => LETTERS[byte] ?? "").join("");
const bare = (text: string): string => text.replace(/\p{Mn}/gu, "");

export function normalized(text: string, parts: readonly NormalizerPart[]): string {
  return parts.reduce((own, part) => {
    switch (part.type) {
      case "Lowercase": return lower(own);
      case "StripAccents": return own.replace(/\p{M}/gu, ""); // more than the rule of WordPiece tokenizers takes for accents
      case "Strip": return own.replace(part.strip_left === false ? /(?!)/ : new RegExp(`^${S}+`, "u"), "").replace(part.strip_right === false ? /(?!)/ : new RegExp(`${S}+$`, "u"), "");
      case "Replace": return own.replace(expression(part.pattern), () => part.content);
      case "Prepend": return own === "" ? own : part.prepend + own;
      case "Nmt": return own.replace(DROPPED, "").replace(BLANK, " ");
      case "Precompiled": return mapped(own, part.precompiled_charsmap);
      case "ByteLevel": return lettered(own);
      case "BertNormalizer": return cleaned(own, part);
      default: return own.normalize(part.type);
    }
  }, text);
}

function cleaned(text: string, { clean_text = true, handle_chinese_chars = true, strip_accents = null, lowercase = true }: Extract<NormalizerPart, { type: "BertNormalizer" }>): string {
  let own = text;
  if (clean_text) own = Array.from(own, (c) => (/[\t\n\r]/.test(c) ? " " : c === "\ufffd" || /[\p{Cc}\p{Cf}\p{Co}]/u.test(c) ? "" : SPACE.test(c) ? " " : c)).join("");
  if (handle_chinese_chars) own = own.replace(HAN, " $& ");
  if (strip_accents ?? lowercase) own = bare(own.normalize("NFD"));
  return lowercase ? lower(own) : own;
}

// A function that cuts a text into words. first: true for what a text begins with.
export function cutter(parts: readonly WordPart[]): (text: string, first: boolean) => string[] {
  const steps = parts.map(step);
  return (text, first) => steps.reduce((words, one) => words.flatMap((word, i) => one(word, first && i === 0)).filter((word) => word !== ""), text === "" ? [] : [text]);
}

function step(part: WordPart): (word: string, first: boolean) => string[] {
  switch (part.type) {
    case "ByteLevel": return (word) => {
      const own = part.add_prefix_space && !word.startsWith(" ") ? ` ${word}` : word;
      return (part.use_regex === false ? [own] : split(own, BYTE_WORDS, "Isolated")).map(lettered);
    };
    case "Split": { const at = expression(part.pattern); return (word) => split(word, at, part.behavior, part.invert); }
    case "Metaspace": { const at = expression({ String: part.mark }); return (word, first) => {
      const marked = word.replaceAll(" ", part.mark), own = (part.scheme === "always" || (part.scheme === "first" && first)) && !marked.startsWith(part.mark) ? part.mark + marked : marked;
      return part.split ? split(own, at, "MergedWithNext") : [own];
    }; }
    case "Digits": return (word) => split(word, part.individual_digits ? DIGIT : DIGITS, "Isolated");
    case "Punctuation": return (word) => split(word, PUNCTUATION, part.behavior ?? "Isolated");
    case "CharDelimiterSplit": { const at = expression({ String: part.delimiter }); return (word) => split(word, at, "Removed"); }
    case "FixedLength": { const at = new RegExp(`.{1,${part.length ?? 5}}`, "gsu"); return (word) => split(word, at, "Isolated"); }
    case "UnicodeScripts": { const scriptOf = lookup(part.scripts); return (word) => byScript(word, scriptOf); }
    case "Whitespace": return (word) => split(word, WORD, "Removed", true);
    case "WhitespaceSplit": return (word) => split(word, SPACES, "Removed");
    case "BertPreTokenizer": return (word) => split(word, SPACES, "Removed").flatMap((w) => split(w, PUNCTUATION, "Isolated"));
  }
}

// The number of a character's script from ranges (first, script); negative without one.
function lookup(ranges: readonly [number, number][]): (char: string) => number {
  return (char) => {
    const point = char.codePointAt(0) ?? 0;
    let low = 0, high = ranges.length;
    while (high - low > 1) { const middle = (low + high) >> 1; if ((ranges[middle]?.[0] ?? Infinity) <= point) low = middle; else high = middle; }
    return ranges[low]?.[1] ?? -1;
  };
}

// A word for each run of one script. What has none stays with what stands before it; at the beginning the library drops it.
function byScript(text: string, scriptOf: (char: string) => number): string[] {
  const out: string[] = [];
  let last = -1;
  for (const char of text) {
    const script = scriptOf(char);
    if (script >= 0 && script !== last) out.push(char);
    else if (out.length > 0) out[out.length - 1] += char;
    if (script >= 0) last = script;
  }
  return out;
}

// split("a b", / /g, "MergedWithPrevious") is ["a ", "b"].  invert: what does not match is what is cut out.
function split(text: string, at: RegExp, behavior: Behavior, invert = false): string[] {
  const parts: { text: string; cut: boolean }[] = [];
  let end = 0;
  for (const match of text.matchAll(at)) {
    if (match[0] === "") continue;
    parts.push({ text: text.slice(end, match.index), cut: invert }, { text: match[0], cut: !invert });
    end = match.index + match[0].length;
  }
  parts.push({ text: text.slice(end), cut: invert });
  const some = parts.filter((p) => p.text !== "");
  if (behavior === "Isolated") return some.map((p) => p.text);
  if (behavior === "Removed") return some.filter((p) => !p.cut).map((p) => p.text);
  if (behavior === "MergedWithNext") some.reverse();
  const out: string[] = [];
  if (behavior === "Contiguous") { // neighbours of one kind are one
    some.forEach((p, i) => { if (p.cut === some[i - 1]?.cut) out[out.length - 1] += p.text; else out.push(p.text); });
    return out;
  }
  some.forEach((p, i) => { // what is cut joins its neighbour, unless that was cut too
    if (!p.cut || some[i - 1]?.cut || out.length === 0) out.push(p.text);
    else out[out.length - 1] = behavior === "MergedWithNext" ? p.text + (out.at(-1) ?? "") : (out.at(-1) ?? "") + p.text;
  });
  return behavior === "MergedWithNext" ? out.reverse() : out;
}
