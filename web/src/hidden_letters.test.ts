import { describe, expect, it } from "vitest";
import { pieceText, visible } from "./hidden_letters";

describe("letters that do not show", () => {
  it("are written by their numbers, as Python writes them", () => {
    expect(visible("a\u202eb\u0007\t\u2028\u{e0067}\u034f\u3164\u2800")).toBe("a\\u202eb\\x07\\t\\u2028\\U000e0067\\u034f\\u3164\\u2800");
    expect(visible("a\u200db \u200d\u200c pay\u200bpal\ufe0f 1\ufe0f \ud800")).toBe("a\\u200db \\u200d\\u200c pay\\u200bpal\\ufe0f 1\\ufe0f \\ud800");
  });
  it("stay in a text where they join what is read", () => {
    for (const text of ["👨‍👩‍👧", "👩🏽‍🚀", "❤️", "❤️‍🔥", "1️⃣", "می‌خواهم", "क्‍ष", "e\u0301", "مرحبا"]) expect(visible(text)).toBe(text);
  });
  it("show in a piece, whatever stands beside them", () => {
    expect(["👨‍👩", "❤️", " of", "\u3000", "\u0301", "\u0301x", "e\u0301", "\u200d", "", "a\nb"].map(pieceText)).toEqual(["👨\\u200d👩", "❤\\ufe0f", "·of", "\\u3000", "◌\u0301", "◌\u0301x", "e\u0301", "\\u200d", "", "a\\nb"]);
  });
  it("are once written not written again", () => {
    for (const text of ["👨‍👩", "\u202e", "\u0301", "a b"]) expect([pieceText(pieceText(text)), visible(pieceText(text))]).toEqual([pieceText(text), pieceText(text)]);
  });
});
