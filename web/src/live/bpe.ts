// Byte-level BPE: a text to ids and back, as the tokenizer of GPT-2 does it. Python's `tokenizers` library is the judge.

// A letter for each byte: printable ones stand for themselves, the others follow from 256.
const LETTERS: string[] = (() => {
  const plain = (b: number): boolean => (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0xad) || b >= 0xae;
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(plain(b) ? b : next++));
})();
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

// Unicode's white space, which differs from JavaScript's \s in U+0085 and U+FEFF.
const S = "\\p{White_Space}";
const WORDS = new RegExp(`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${S}\\p{L}\\p{N}]+|${S}+(?!\\P{White_Space})|${S}+`, "gu");
const HIDDEN = /[\p{C}\p{Z}]/u; // characters that do not show

export interface Vocabulary { pieces: readonly (string | null)[]; merges: readonly string[]; special: readonly string[] }

export class Bpe {
  private readonly ids: Map<string, number>;
  private readonly ranks: Map<string, number>;
  private readonly special: Set<string>;
  private readonly known = new Map<string, number[]>();

  constructor(private readonly vocabulary: Vocabulary) {
    this.ids = new Map(vocabulary.pieces.flatMap((piece, id) => (piece === null ? [] : [[piece, id] as const])));
    this.ranks = new Map(vocabulary.merges.map((pair, rank) => [pair, rank]));
    this.special = new Set(vocabulary.special);
  }

  // Text is only ever text: a special token that is typed becomes ordinary pieces.
  encode(text: string): number[] {
    return (text.match(WORDS) ?? []).flatMap((word) => {
      const known = this.known.get(word);
      if (known) return known;
      const made = this.word(Array.from(new TextEncoder().encode(word), (byte) => LETTERS[byte] ?? ""));
      this.known.set(word, made);
      return made;
    });
  }

  // Join the pair that was learned first, again and again.
  private word(parts: string[]): number[] {
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      const pair = `${parts[at]} ${parts[at + 1]}`, joined: string[] = [];
      for (let i = 0; i < parts.length; i++) {
        if (i + 1 < parts.length && `${parts[i]} ${parts[i + 1]}` === pair) joined.push(`${parts[i]}${parts[++i]}`);
        else joined.push(parts[i] ?? "");
      }
      parts = joined;
    }
    return parts.flatMap((part) => this.ids.get(part) ?? []);
  }

  bytes(id: number): Uint8Array {
    const piece = this.vocabulary.pieces[id] ?? "";
    if (this.special.has(piece)) return new TextEncoder().encode(piece);
    return Uint8Array.from(Array.from(piece, (letter) => BYTES.get(letter) ?? 0));
  }

  decode(ids: readonly number[]): string {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids.flatMap((id) => [...this.bytes(id)])));
  }

  // A piece so that each of its bytes shows: a space as ·, incomplete UTF-8 as <E4 B8>, control characters escaped.
  shown(id: number): string {
    const bytes = this.bytes(id);
    try {
      return Array.from(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes), escaped).join("");
    } catch {
      return `<${Array.from(bytes, (b) => b.toString(16).toUpperCase().padStart(2, "0")).join(" ")}>`;
    }
  }
}

function escaped(c: string): string {
  if (c === " ") return "·";
  if (!HIDDEN.test(c)) return c;
  const code = c.codePointAt(0) ?? 0, short = { 9: "\\t", 10: "\\n", 13: "\\r" }[code];
  return short ?? (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`);
}
