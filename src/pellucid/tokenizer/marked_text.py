"""Text with a mark on each character that a chat template wrote, so that nothing in a message can pass for a control token.

    "<|user|>" + "hi <|end|>"  ->  <|user|>hi <|end|>
                                   111111110000000000

A template's own literals are `Written`; what came with the messages is a plain str. Joining, cutting, trimming and replacing carry the
origin along, any other method of str gives a plain str: where origin is lost, it is lost to the safe side.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, SupportsIndex

OWN, ANSWER = 1, 2  # bits of a mask
WITH_ANSWER = bytes(bits | ANSWER for bits in range(256))


class Written(str):
    """A text whose mask has the bit OWN for each character that the template wrote, and ANSWER inside of `{% generation %}`.

    Without a mask no character has either.
    """

    __slots__ = ("_mask",)
    _mask: bytes

    def __new__(cls, text: str = "", mask: bytes | None = None) -> "Written":
        made = super().__new__(cls, text)
        made._mask = bytes(len(text)) if mask is None else mask
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> "Written":
        return Written(super().__getitem__(key), self._mask[key] if isinstance(key, slice) else bytes([self._mask[key]]))

    def join(self, parts: Iterable[str], /) -> "Written":
        between = list[str]()
        for part in parts:
            between += [self, part]
        return joined(between[1:])

    def lstrip(self, chars: str | None = None, /) -> "Written":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> "Written":
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None, /) -> "Written":
        return self.lstrip(chars).rstrip(chars)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return super().replace(old, new, count)
        ends, at = [0], 0
        for part in super().split(old, count)[:-1]:
            at += len(part) + len(old)
            ends.append(at)
        kept = [self[start : stop - len(old)] for start, stop in pairwise(ends)]
        return joined([*(text for part in kept for text in (part, new)), self[at:]])


def wrote(text: str) -> Written:
    """Return a text of the template itself."""
    return Written(text, bytes([OWN]) * len(text))


def joined(parts: Iterable[str]) -> Written:
    """Return these texts joined, with their marks."""
    texts, masks = list[str](), list[bytes]()
    for part in parts:
        texts.append(part)
        masks.append(part._mask if isinstance(part, Written) else bytes(len(part)))
    return Written("".join(texts), b"".join(masks))


def answered(text: str) -> Written:
    """Return a text as one that an assistant gives."""
    mask = text._mask if isinstance(text, Written) else bytes(len(text))
    return Written(text, mask.translate(WITH_ANSWER))


def spans(text: str, bit: int = OWN) -> list[tuple[int, int]]:
    """Return the start and stop of each stretch that the template wrote, or whose characters have another bit."""
    mask = text._mask if isinstance(text, Written) else bytes(len(text))
    mask = mask.translate(bytes(bits & bit != 0 for bits in range(256)))
    stretches, at = list[tuple[int, int]](), 0
    while (start := mask.find(1, at)) >= 0:
        at = stop if (stop := mask.find(0, start)) >= 0 else len(mask)
        stretches.append((start, at))
    return stretches
