"""The bytes of a vocabulary's pieces: each piece stands for exact bytes, a text is their join, a stream is the join so far.

byte-level    "ĠParis"  -> b" Paris"       256 letters stand for 256 bytes (GPT-2)
sentencepiece "▁Paris"  -> b" Paris"       "<0xE4>" is the byte E4
wordpiece     "##is"    -> b"##is"         joined to the word before it when decoded
"""

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pellucid.errors import TokenizerError, UseError

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# What the library tidies in a decoded word: " ." becomes "."
TIDY = [(" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" do not", " don't")]
TIDY += [(" 's", "'s"), (" 've", "'ve"), (" 're", "'re")]


@dataclass(frozen=True, slots=True)
class Piece:
    """One token: its id, its bytes, the same as text (U+FFFD for bytes that are no text alone), and whether it is special."""

    id: int
    text: str
    raw: bytes
    special: bool


@dataclass(frozen=True, slots=True)
class Writing:
    """How a vocabulary writes bytes. raw(piece): its bytes.  spoken(piece, first): what it adds to a decoded text.

    strip: leading spaces that decoding drops.  lettered: letters stand for bytes, but an added token is its own text.
    """

    raw: Callable[[str], bytes]
    spoken: Callable[[str, bool], bytes]
    strip: int = 0
    lettered: bool = False


def _letters() -> dict[str, int]:
    """Return the byte of each letter of GPT-2's byte-level alphabet: printable bytes are themselves, the others follow from 256."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


LETTERS = _letters()


def find_word(pieces: Sequence[Piece], word: str) -> list[int]:
    """Return the positions of the pieces that hold `word`. A UseError unless the pieces' text has it once."""
    text, sought = b"".join(p.raw for p in pieces), word.encode()
    if not sought or text.count(sought) != 1:
        raise UseError("change.word.count", word=word, found=text.count(sought) if sought else 0, prompt=text.decode(errors="replace"))
    start = text.index(sought)
    ends = list(accumulate(len(p.raw) for p in pieces))
    return [i for i, (p, end) in enumerate(zip(pieces, ends, strict=True)) if end > start and end - len(p.raw) < start + len(sought)]


def writing(decoder: dict[str, Any] | None, file: str) -> Writing:
    """Return the writing that a checked tokenizer's decoder undoes."""
    if decoder is None:
        return Writing(str.encode, lambda piece, first: (piece if first else " " + piece).encode())
    parts = _flat(decoder)
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"]:
        return Writing(_byte_level, lambda piece, first: _byte_level(piece), lettered=True)
    if kinds == ["WordPiece"]:
        return _wordpiece(parts[0])
    if kinds == ["Metaspace"]:
        return _metaspace(parts[0])
    # Each at most once but Replace, and in this order: then a text is a plain join of bytes.
    order = ["Replace", "ByteFallback", "Fuse", "Strip"]
    ranks = [order.index(kind) if kind in order else -1 for kind in kinds]
    single = [rank for rank in ranks if rank]
    stripped = "Strip" not in kinds or "Fuse" in kinds
    if -1 in ranks or ranks != sorted(ranks) or len(single) != len(set(single)) or not stripped:
        raise TokenizerError("tokenizer.decoder", file=file, found=", ".join(kinds))
    swaps = [(part["pattern"]["String"], part["content"]) for part in parts if part["type"] == "Replace"]
    fallback = "ByteFallback" in kinds

    def raw(piece: str) -> bytes:
        for old, new in swaps:
            piece = piece.replace(old, new)
        return bytes([int(piece[3:5], 16)]) if fallback and _BYTE.fullmatch(piece) else piece.encode()

    return Writing(raw, lambda piece, first: raw(piece), parts[-1]["start"] if kinds[-1:] == ["Strip"] else 0)


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flat(inner)]


def _byte_level(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; one with any other letter is its own text, as in the library."""
    try:
        return bytes([LETTERS[letter] for letter in piece])
    except KeyError:
        return piece.encode()


def _metaspace(part: dict[str, Any]) -> Writing:
    mark = part.get("replacement", "▁")
    drops = part.get("prepend_scheme", "always") != "never" and part.get("add_prefix_space") is not False

    def spoken(piece: str, first: bool) -> bytes:
        return piece.replace(mark, "" if first and drops else " ").encode()

    return Writing(lambda piece: piece.replace(mark, " ").encode(), spoken)


def _wordpiece(part: dict[str, Any]) -> Writing:
    prefix, tidy = part.get("prefix", "##"), part.get("cleanup", True)

    def spoken(piece: str, first: bool) -> bytes:
        if not first:
            piece = piece.removeprefix(prefix) if piece.startswith(prefix) else " " + piece
        for old, new in TIDY if tidy else ():
            piece = piece.replace(old, new)
        return piece.encode()

    return Writing(str.encode, spoken)


class Stream:
    """A stream of text from ids one by one: never half a character, at most three bytes held back; the join equals decoding all."""

    def __init__(self, spoken: Callable[[int, bool], bytes | None], strip: int, first: bool = True) -> None:
        self._spoken, self._strip, self._first = spoken, strip, first
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, id: int) -> str:
        """Return the text that this id completes; "" while a character is incomplete."""
        raw = self._spoken(id, self._first)
        if raw is None:  # a special token that is skipped
            return ""
        self._first = False
        return self._stripped(self._decoder.decode(raw))

    def end(self) -> str:
        """Return what is held back: U+FFFD for an incomplete character."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def over(self, ids: Iterable[int]) -> str:
        """Return the text of all these ids, with the end."""
        return "".join([*map(self.feed, ids), self.end()])

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text
