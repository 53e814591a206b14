"""Maps of characters as SentencePiece precompiles them: a double array of texts, and what each becomes."""

import base64
import unicodedata
from collections.abc import Mapping
from functools import cache

BLANK = "\t\n\f\r\u1680\u200b\u200c\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd"  # spaces by the rules of Moses
LEAF = 1 << 31


def packed(texts: Mapping[str, str]) -> str:
    """Return a map of `texts` to what they become, in base64."""
    known = {new: i for i, new in enumerate(dict.fromkeys(texts.values()))}
    starts, at = [], 0
    for new in known:
        starts.append(at)
        at += len(new.encode()) + 1
    ways: dict[bytes, set[int]] = {}  # beginnings, and the bytes that follow each; 0 where a text ends
    for text in texts:
        raw = text.encode()
        for i, byte in enumerate(raw):
            ways.setdefault(raw[:i], set()).add(byte)
        ways.setdefault(raw, set()).add(0)
    values = {text.encode(): starts[known[new]] for text, new in texts.items()}
    units, taken, free = {0: 0}, {0}, 1
    waiting = [(b"", 0)]
    while waiting:  # each node's children stand at base ^ byte
        begun, node = waiting.pop(0)
        while free in taken:
            free += 1
        first = min(ways[begun])
        base = next(b for b in ((i ^ first) for i in range(free, 1 << 21)) if b and all(b ^ byte not in taken for byte in ways[begun]))
        units[node] |= (node ^ base) << 10 | (0 in ways[begun]) << 8
        for byte in sorted(ways[begun]):
            taken.add(base ^ byte)
            units[base ^ byte] = byte if byte else LEAF | values[begun]
            if byte:
                waiting.append((begun + bytes([byte]), base ^ byte))
    array = b"".join(units.get(i, 0).to_bytes(4, "little") for i in range((max(units) | 255) + 1))
    return base64.b64encode(len(array).to_bytes(4, "little") + array + b"".join(new.encode() + b"\0" for new in known)).decode()


@cache
def nmt_nfkc() -> str:
    """Return a map like the one of T5 and XLM-R: NFKC of what is one character, spaces of many kinds, and no control characters."""
    texts = {chr(i): "" for i in (*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F)}
    texts |= dict.fromkeys(BLANK, " ")
    for c in map(chr, (*range(0xA0, 0x3400), *range(0xF900, 0xFFFE), *range(0x1D400, 0x1D600), *range(0x1F100, 0x1F200))):
        if c in texts:
            continue
        if (new := unicodedata.normalize("NFKC", c)) != c:
            texts[c] = new
        if len(parts := unicodedata.normalize("NFD", c)) > 1:
            texts.setdefault(parts, new)
    return packed(texts)
