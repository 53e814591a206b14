// A text to ids and back, by the parts that Python wrote (html/live_tokenizer.py). Python's `tokenizers` library is the judge.

import { pieceText } from "../hidden_letters";
import { cutter, LETTERS, literally, normalized, type NormalizerPart, type WordPart } from "./text_parts";
import { encoderOf, type EncoderPart } from "./word_encoders";

const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));
const BYTE = /^<0x[0-9A-Fa-f]{2}>$/;

type WritingPart =
  | { kind: "apart" }
  | { kind: "letters" }
  | { kind: "words"; prefix: string; tidy: [string, string][] }
  | { kind: "marks"; mark: string; drops: boolean }
  | { kind: "swaps"; swaps: [string, string][]; fallback: boolean; strip: number };

interface AddedToken { id: number; content: string; normalized: boolean }

export interface Vocabulary {
  pieces: readonly (string | null)[]; // by id
  merges: readonly string[]; // two pieces with a space between them, the first to be joined first
  around: readonly [readonly number[], readonly number[]]; // ids before a text, and after it
  text: { normalizer: NormalizerPart[]; words: WordPart[]; model: EncoderPart; added: AddedToken[]; writing: WritingPart };
  literal: readonly number[]; // ids that are their own text
}

// Added tokens by their contents; the longest is found first.
class Names {
  private readonly ids: Map<string, number>;
  private readonly any: RegExp | undefined;
  constructor(tokens: [string, number][]) {
    this.ids = new Map(tokens);
    const names = [...this.ids.keys()].sort((a, b) => b.length - a.length).map(literally);
    this.any = names.length > 0 ? new RegExp(`(${names.join("|")})`, "u") : undefined;
  }

  // The ids of a text: those of names, and between them what `other` makes. first: true for what the text begins with.
  split(text: string, other: (part: string, first: boolean) => number[]): number[] {
    const parts = this.any ? text.split(this.any) : [text];
    return parts.flatMap((part, i) => {
      const own = this.ids.get(part);
      return own !== undefined && i % 2 === 1 ? [own] : part === "" ? [] : other(part, i === 0);
    });
  }
}

const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);

export class Tokenizer {
  private readonly known = new Map<string, number[]>();
  private readonly names: { raw: Names; normalized: Names };
  private readonly literal: Set<number>;
  private readonly cut: (text: string, first: boolean) => string[];
  private readonly word: (word: string) => number[];

  constructor(private readonly vocabulary: Vocabulary) {
    const { text, pieces, merges } = vocabulary;
    this.cut = cutter(text.words);
    this.word = encoderOf(text.model, pieces, merges);
    this.literal = new Set(vocabulary.literal);
    this.names = {
      raw: new Names(text.added.filter((t) => !t.normalized).map((t) => [t.content, t.id])),
      normalized: new Names(text.added.filter((t) => t.normalized).map((t) => [normalized(t.content, text.normalizer), t.id])),
    };
  }

  // Text is only ever text: a control token that is typed becomes ordinary pieces. starts: false for what stands behind a control token.
  encode(text: string, starts = true): number[] {
    return this.names.raw.split(text, (part, begins) =>
      this.names.normalized.split(normalized(part, this.vocabulary.text.normalizer), (own, first) => this.cut(own, starts && begins && first).flatMap((word) => this.ids(word))));
  }

  // The parts of a text that are encoded apart, in the vocabulary's writing.
  words(text: string): string[] {
    return this.cut(normalized(text, this.vocabulary.text.normalizer), true);
  }

  private ids(word: string): number[] {
    const known = this.known.get(word);
    if (known) return known;
    const made = this.word(word);
    if (word.length < 64) this.known.set(word, made);
    return made;
  }

  // The bytes that an id stands for.
  bytes(id: number): Uint8Array {
    const piece = this.vocabulary.pieces[id] ?? "", { writing } = this.vocabulary.text;
    if (this.literal.has(id)) return utf8(piece);
    if (writing.kind === "letters") {
      const bytes = Array.from(piece, (letter) => BYTES.get(letter));
      return bytes.every((b) => b !== undefined) ? Uint8Array.from(bytes as number[]) : utf8(piece);
    }
    if (writing.kind === "marks") return utf8(piece.replaceAll(writing.mark, " "));
    if (writing.kind !== "swaps") return utf8(piece);
    const swapped = writing.swaps.reduce((text, [old, own]) => text.replaceAll(old, own), piece);
    return writing.fallback && BYTE.test(swapped) ? Uint8Array.of(parseInt(swapped.slice(3, 5), 16)) : utf8(swapped);
  }

  // What an id adds to a text.
  private spoken(id: number, first: boolean): Uint8Array {
    const piece = this.vocabulary.pieces[id] ?? null, { writing } = this.vocabulary.text;
    if (piece === null || this.literal.has(id)) return this.bytes(id);
    if (writing.kind === "apart") return utf8(first ? piece : ` ${piece}`);
    if (writing.kind === "marks") return utf8(piece.replaceAll(writing.mark, first && writing.drops ? "" : " "));
    if (writing.kind !== "words") return this.bytes(id);
    const own = first ? piece : piece.startsWith(writing.prefix) ? piece.slice(writing.prefix.length) : ` ${piece}`;
    return utf8(writing.tidy.reduce((text, [old, tidied]) => text.replaceAll(old, tidied), own));
  }

  decode(ids: readonly number[]): string {
    const { writing } = this.vocabulary.text, known = ids.filter((id) => (this.vocabulary.pieces[id] ?? null) !== null);
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(known.flatMap((id, i) => [...this.spoken(id, i === 0)])));
    return writing.kind === "swaps" ? text.replace(new RegExp(`^ {0,${writing.strip}}`), "") : text;
  }

  // A piece so that each of its bytes shows: a space as ·, incomplete UTF-8 as <E4 B8>, control characters escaped.
  shown(id: number): string {
    const bytes = this.bytes(id);
    try {
      return pieceText(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
    } catch {
      return `<${Array.from(bytes, (b) => b.toString(16).toUpperCase().padStart(2, "0")).join(" ")}>`;
    }
  }
}
