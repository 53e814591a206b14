// SentencePiece's map of characters (nmt_nfkc and its kin): a double array of the texts that it rewrites, and what each becomes.
//
//   bytes   [size of the array] [units of 32 bits] [texts, each ended by a zero]
//   unit    bits 0-7 and 31: its label; 8: a text ends here; 9-30: the way on.  Of a text's end: where what it becomes begins
//
// As the library does it: a grapheme of at most five bytes becomes what its shortest beginning in the map becomes, else each of its characters.

import { unpacked } from "../run/recorded";

const SHORT = 6; // bytes of a grapheme that is looked up character by character
const UTF8 = new TextEncoder(), TEXT = new TextDecoder("utf-8", { ignoreBOM: true });
const maps = new Map<string, Charsmap>();

class Charsmap {
  private readonly units: Uint32Array;
  private readonly texts: Uint8Array;
  private readonly graphemes = new Intl.Segmenter("en", { granularity: "grapheme" });
  private readonly known = new Map<string, string | undefined>();

  constructor(packed: string) {
    const bytes = unpacked(packed), view = new DataView(bytes.buffer), size = view.getUint32(0, true);
    this.units = Uint32Array.from({ length: size / 4 }, (_, i) => view.getUint32(4 + 4 * i, true));
    this.texts = bytes.subarray(4 + size);
  }

  private unit(at: number): number { return this.units[at] ?? 0; }

  // What the shortest beginning of a text in the map becomes; undefined if none is there.
  private search(text: string): string | undefined {
    const way = (unit: number): number => (unit >>> 10) << ((unit & 512) >>> 6);
    let at = way(this.unit(0));
    for (const byte of UTF8.encode(text)) {
      at ^= byte;
      const unit = this.unit(at);
      if ((unit & 0x800000ff) !== byte) return undefined;
      at ^= way(unit);
      if ((unit & 256) === 0) continue;
      const from = this.unit(at) & 0x7fffffff, end = this.texts.indexOf(0, from);
      return TEXT.decode(this.texts.subarray(from, end < 0 ? undefined : end));
    }
    return undefined;
  }

  private look(text: string): string | undefined {
    if (!this.known.has(text)) this.known.set(text, this.search(text));
    return this.known.get(text);
  }

  rewrite(text: string): string {
    return Array.from(this.graphemes.segment(text), ({ segment }) => {
      const entire = UTF8.encode(segment).length < SHORT ? this.look(segment) : undefined;
      return entire ?? Array.from(segment, (c) => this.look(c) ?? c).join("");
    }).join("");
  }
}

export function mapped(text: string, packed: string): string {
  const map = maps.get(packed) ?? new Charsmap(packed);
  maps.set(packed, map);
  return map.rewrite(text);
}
