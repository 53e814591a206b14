// A word to ids: by merges (BPE), by the longest piece (WordPiece), by the likeliest pieces (Unigram), or each word a piece (WordLevel).

const PENALTY = 10; // by which a character without a piece is less likely than any piece

export type EncoderPart =
  | { type: "BPE"; fenced: number[]; unknown: number | null; fuse_unk: boolean; byte_fallback: boolean; ignore_merges: boolean; prefix: string; suffix: string }
  | { type: "WordPiece"; fenced: number[]; unknown: number | null; prefix: string; longest: number }
  | { type: "WordLevel"; fenced: number[]; unknown: number }
  | { type: "Unigram"; fenced: number[]; unknown: number | null; byte_fallback: boolean; scores: number[] };

// fenced: ids that no word becomes.
export function encoderOf(part: EncoderPart, pieces: readonly (string | null)[], merges: readonly string[]): (word: string) => number[] {
  const fenced = new Set(part.fenced), ids = new Map(pieces.flatMap((piece, id) => (piece === null || fenced.has(id) ? [] : [[piece, id] as const])));
  if (part.type === "WordPiece") return (word) => longest(part, ids, word);
  if (part.type === "WordLevel") return (word) => [ids.get(word) ?? part.unknown];
  if (part.type === "Unigram") {
    const least = part.scores.reduce((m, x) => Math.min(m, x), Infinity), most = [...ids.keys()].reduce((m, piece) => Math.max(m, piece.length), 1);
    return (word) => likeliest(part, ids, word, least - PENALTY, most);
  }
  const ranks = new Map(merges.map((pair, rank) => [pair, rank]));
  return (word) => merged(part, ids, ranks, word);
}

// The ids of a text's bytes; undefined unless all have pieces.
function bytesOf(text: string, ids: ReadonlyMap<string, number>): number[] | undefined {
  const all = Array.from(new TextEncoder().encode(text), (b) => ids.get(`<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`));
  return all.every((id) => id !== undefined) ? (all as number[]) : undefined;
}

function merged(part: Extract<EncoderPart, { type: "BPE" }>, ids: ReadonlyMap<string, number>, ranks: ReadonlyMap<string, number>, word: string): number[] {
  const entry = part.ignore_merges ? ids.get(word) : undefined;
  if (entry !== undefined) return [entry];
  const parts: (string | null)[] = []; // null for what has no piece
  let unknown = 0;
  const flush = (): void => { for (; unknown > 0; unknown--) parts.push(null); };
  const letters = Array.from(word);
  letters.forEach((letter, i) => { // as the vocabulary writes it within a word, and at its end
    const c = `${i > 0 ? part.prefix : ""}${letter}${i === letters.length - 1 ? part.suffix : ""}`, bytes = ids.has(c) || !part.byte_fallback ? undefined : bytesOf(c, ids);
    if (ids.has(c)) flush(), parts.push(c);
    else if (bytes) parts.push(...Array.from(new TextEncoder().encode(c), (b) => `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`));
    else if (part.unknown !== null) unknown = part.fuse_unk ? 1 : unknown + 1;
  });
  flush();
  const rank = (i: number): number => (i + 1 < parts.length && parts[i] !== null && parts[i + 1] !== null ? (ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity) : Infinity);
  const known = parts.map((_, i) => rank(i));
  for (;;) { // join the pair that was learned first, again and again
    let at = -1, best = Infinity;
    known.forEach((r, i) => { if (r < best) [best, at] = [r, i]; });
    if (at < 0) break;
    parts.splice(at, 2, `${parts[at]}${parts[at + 1]?.slice(part.prefix.length)}`);
    known.splice(at, 1);
    known[at] = rank(at);
    if (at > 0) known[at - 1] = rank(at - 1);
  }
  return parts.flatMap((p) => (p === null ? (part.unknown ?? []) : (ids.get(p) ?? [])));
}

function longest(part: Extract<EncoderPart, { type: "WordPiece" }>, ids: ReadonlyMap<string, number>, word: string): number[] {
  const letters = Array.from(word), out: number[] = [], none = part.unknown === null ? [] : [part.unknown];
  if (letters.length > part.longest) return none;
  for (let from = 0; from < letters.length;) {
    let to = letters.length, id: number | undefined;
    for (; to > from; to--) if ((id = ids.get((from > 0 ? part.prefix : "") + letters.slice(from, to).join(""))) !== undefined) break;
    if (id === undefined) return none;
    out.push(id);
    from = to;
  }
  return out;
}

// unlikely: the score of a character without a piece.  most: units of the longest piece.
function likeliest(part: Extract<EncoderPart, { type: "Unigram" }>, ids: ReadonlyMap<string, number>, word: string, unlikely: number, most: number): number[] {
  const best: ({ score: number; from: number; id: number | null } | undefined)[] = [{ score: 0, from: 0, id: null }];
  const take = (to: number, score: number, from: number, id: number | null): void => { if (best[to] === undefined || score > (best[to]?.score ?? 0)) best[to] = { score, from, id }; };
  for (let from = 0; from < word.length;) {
    const here = best[from]?.score ?? 0, step = (word.codePointAt(from) ?? 0) > 0xffff ? 2 : 1;
    let single = false;
    for (let to = from + step; to <= word.length && to - from <= most; to += (word.codePointAt(to) ?? 0) > 0xffff ? 2 : 1) {
      const id = ids.get(word.slice(from, to));
      if (id === undefined) continue;
      take(to, (part.scores[id] ?? 0) + here, from, id);
      single ||= to === from + step;
    }
    if (!single) take(from + step, unlikely + here, from, null);
    from += step;
  }
  const chosen: { text: string; id: number | null }[] = [];
  for (let to = word.length; to > 0;) {
    const node = best[to], from = node?.from ?? 0, id = node?.id ?? null, own = id === part.unknown ? null : id, text = word.slice(from, to), last = chosen.at(-1);
    if (own === null && last?.id === null) last.text = text + last.text; // one after another is one
    else chosen.push({ text, id: own });
    to = from;
  }
  return chosen.reverse().flatMap(({ text, id }) => id ?? ids.get(text) ?? (part.byte_fallback ? bytesOf(text, ids) : undefined) ?? part.unknown ?? []);
}
