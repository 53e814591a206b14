"""The writing systems by which the library's UnicodeScripts cuts a text, asked of the library: a browser has another year's Unicode."""

from functools import cache

from tokenizers import pre_tokenizers

LATIN, HAN = "a", chr(0x4E00)
BLOCK = 128  # code points that are asked for at once
NONE = -1  # a space, or what Unicode has not assigned: it stays with what stands before it


@cache
def scripts() -> list[tuple[int, int]]:
    """Return ranges of code points as (first, script), in order; a script is a number, or NONE."""
    ranges, known = list[tuple[int, int]](), list[str]()
    for first in range(0, 0x110000, BLOCK):
        chars = [chr(p) for p in range(first, first + BLOCK) if not 0xD800 <= p < 0xE000]
        block, end = "".join(chars), 1 + len(chars)
        if all(boundaries(before + block + after) <= {0, end} for before, after in ((LATIN, HAN), (HAN, LATIN))):
            kinds = [NONE] * len(chars)
        else:
            kinds = numbered(chars, known)
        for char, script in zip(chars, kinds, strict=True):
            if not ranges or ranges[-1][1] != script:
                ranges.append((ord(char), script))
    return ranges


def numbered(chars: list[str], known: list[str]) -> list[int]:
    """Return the script of each of neighbouring characters. A new script joins `known`, a character of each."""
    behind = boundaries("".join(f"{LATIN}{char}{HAN}" for char in chars))
    staying = [i for i in range(len(chars)) if 3 * i + 1 not in behind]  # Latin, or none
    behind = boundaries("".join(f"{HAN}{chars[i]}{LATIN}" for i in staying))
    none = {i for n, i in enumerate(staying) if 3 * n + 1 not in behind}
    apart = boundaries("".join(chars))
    out = list[int]()
    for i, char in enumerate(chars):
        if i in none:
            out.append(NONE)
        elif i > 0 and out[-1] != NONE and i not in apart:
            out.append(out[-1])
        else:
            pairs = boundaries("".join(char + one for one in known))
            script = next((n for n in range(len(known)) if 2 * n + 1 not in pairs), len(known))
            out.append(script)
            if script == len(known):
                known.append(char)
    return out


def boundaries(text: str) -> set[int]:
    """Return the places in a text before which the library cuts it."""
    return {start for _, (start, _) in pre_tokenizers.UnicodeScripts().pre_tokenize_str(text)}
