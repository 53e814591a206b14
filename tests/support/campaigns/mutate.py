"""Mutants: of bytes, blindly; of JSON, by its structure."""

import json
import math
import random
from copy import deepcopy
from typing import Any

EVIL: list[Any] = [
    None, True, False, 0, 1, -1, 2.0, 1e308, 2**31, 2**63, 2**64, 10**25, -(2**63), 0.1, math.nan, math.inf, "", "2", "F32", "../x", "\x00",
    "\u202e", "a" * 1000, "<|endoftext|>", [], {}, [[]], [None], [1, 2, 3], {"a": {"b": []}}, "__class__", "{{7*7}}", "𝕏", "\ud800",
]  # fmt: skip
WORDS = (
    b"{",
    b"}",
    b'"',
    b":",
    b",",
    b"\\",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"9" * 30,
    b"[" * 300,
    b"NaN",
    b"1e999",
    b"-1",
    b"\n",
    b"__proto__",
)


def mangled(raw: bytes, draw: random.Random) -> bytes:
    """Return `raw` with one to four blind changes: a bit, a cut, a piece twice, a piece away, a hostile word put in."""
    data = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                end = at + draw.randrange(40)
                data[at:at] = data[at:end]
            case 3:
                del data[at : at + draw.randrange(40)]
            case 4:
                data[at:at] = draw.choice(WORDS)
            case _:
                word = draw.choice(WORDS)
                data[at : at + len(word)] = word
    return bytes(data)


def bent(tree: Any, draw: random.Random) -> Any:
    """Return the same JSON with one to three changes: another value, a name away, a name more, two values exchanged."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = [(holder, key) for holder, key in walk(tree)]
        if not places:
            return draw.choice(EVIL)
        holder, key = draw.choice(places)
        match draw.randrange(6):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw.choice((key + "_", "x", "", "__metadata__", key.upper(), "a" * 300, "\x1b[31m"))] = deepcopy(holder[key])
            case 2:
                other, name = draw.choice(places)
                holder[key], other[name] = deepcopy(other[name]), deepcopy(holder[key])  # copies: no tree may hold itself
            case 3 if isinstance(holder[key], int) and not isinstance(holder[key], bool):
                holder[key] += draw.choice((-1, 1, 2**16, -holder[key], 10 ** draw.randrange(20)))
            case _:
                holder[key] = deepcopy(draw.choice(EVIL))
    return tree


def walk(tree: Any) -> list[tuple[Any, Any]]:
    """Return every place of a tree, as the holder and the key."""
    out: list[tuple[Any, Any]] = []
    pairs = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in pairs:
        out.append((tree, key))
        out += walk(value)
    return out


def text(tree: Any) -> bytes:
    """Return JSON as bytes, with NaN and lone surrogates, which JSON lacks, as Python writes them."""
    return json.dumps(tree, ensure_ascii=True).encode()
