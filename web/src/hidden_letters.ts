// How letters that do not show are written: as Python writes them (runs/answers.py), so that a piece is the same on every view and in the terminal.

const SHORT: Record<number, string> = { 9: "\\t", 10: "\\n", 13: "\\r" };
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu; // U+2800 is a pattern of Braille without a dot
// Between these a joiner shapes what is read: a family of one emoji, Persian and Indic words.
const EMOJI = /[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]$/u, NEXT = /^\p{Extended_Pictographic}/u, SELECTED = /\p{Extended_Pictographic}$/u, KEYCAP = "\u20e3";
const JOINS = "[\\p{scx=Arab}\\p{scx=Syrc}\\p{scx=Mong}\\p{scx=Deva}\\p{scx=Beng}\\p{scx=Guru}\\p{scx=Gujr}\\p{scx=Orya}\\p{scx=Taml}\\p{scx=Telu}\\p{scx=Knda}\\p{scx=Mlym}\\p{scx=Sinh}]";
const BEHIND = new RegExp(`${JOINS}$`, "u"), AHEAD = new RegExp(`^${JOINS}`, "u");

// A character by its number.
export function escapeOf(c: string): string {
  const code = c.codePointAt(0) ?? 0, hex = code.toString(16);
  return SHORT[code] ?? (code < 0x100 ? `\\x${hex.padStart(2, "0")}` : code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`);
}

// Control and direction characters and what else does not show as escapes, so that no text can hide or turn another. Joiners stay where they join.
export const visible = (text: string): string =>
  text.replace(HIDDEN, (c, at: number) => {
    const before = text.slice(Math.max(0, at - 2), at), after = text.slice(at + c.length, at + c.length + 2);
    if (c === "\ufe0f" && (SELECTED.test(before) || after.startsWith(KEYCAP))) return c;
    const joins = c === "\u200d" && EMOJI.test(before) && NEXT.test(after), shapes = (c === "\u200c" || c === "\u200d") && BEHIND.test(before) && AHEAD.test(after);
    return joins || shapes ? c : escapeOf(c);
  });

const UNSEEN = /[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/u, MARK = /^\p{M}/u;

// A piece so that each of its characters shows: a space as ·, a mark that has nothing to stand on over a dotted circle.
export const pieceText = (text: string): string => {
  const all = Array.from(text, (c) => (c === " " ? "·" : UNSEEN.test(c) ? escapeOf(c) : c)).join("");
  return MARK.test(all) ? `\u25cc${all}` : all;
};
