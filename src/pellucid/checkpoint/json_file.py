"""The strict JSON reader for all files: config.json, safetensors headers, indexes, tokenizers and traces.

The text is scanned before Python's parser sees it, to bound depth, numbers, and memory per byte:

    {"a": 1, "a": 2}  refused, Python keeps the last      NaN, 1e999  refused, Python accepts      [[[[...  refused before any recursion
    [{},{},{},...     refused beyond MOST_PIECES: three bytes of it would cost Python two hundred

Sound files pass by a few regular expressions, which run in C; a scan token by token only locates a fault.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import ErrorType, read_whole, refuse_stand_in
from pellucid.errors import ConfigError

CONFIG_BYTES = 10_000_000
TABLE_BYTES = 64_000_000  # a safetensors header, an index, a tokenizer; the largest published one, Gemma 3's tokenizer, has 33 million
DEEPEST = 64
MOST_DIGITS = 31  # of an integer: what stands for "no limit" in most tokenizer_config.json, 10^30, has 31
MOST_PIECES = 6_000_000  # strings, commas and brackets; Gemma 3's tokenizer has 3.1 million
LONGEST_NUMBER = 40  # characters of a fraction: 17 digits, leading zeros and an exponent

# A string that never ends is one match to the end of the text; possessive repeats keep the scan linear.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]|-?[0-9][0-9.eE+-]*+|NaN|Infinity', re.DOTALL)
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_OTHER = re.compile(r"[^\[\]{}]+")
_UNUSUAL = re.compile(r"[0-9.+-]++[eE][0-9.eE+-]*+|[0-9.+-]{21,}+|NaN|Infinity")  # all that may be refused, and more
_SPACES = str.maketrans("", "", " \t\r\n")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a config.json, in which a bare `Infinity`, as Python writes it, stands as transformers 5 spells it."""
    raw = read_whole(path, CONFIG_BYTES, ConfigError)
    refuse_stand_in(raw, path, ConfigError)
    return parse_object(raw, str(path), ConfigError, infinite=True)


def read_object(path: Path, limit: int = CONFIG_BYTES, error: ErrorType = ConfigError) -> dict[str, Any]:
    """Return the object in a JSON file of at most `limit` bytes."""
    raw = read_whole(path, limit, error)
    refuse_stand_in(raw, path, error)
    return parse_object(raw, str(path), error)


def parse_object(raw: bytes, file: str, error: ErrorType = ConfigError, infinite: bool = False) -> dict[str, Any]:
    """Return the JSON object in these bytes; `file` is their name in errors.

    infinite: a bare `Infinity` may stand in it, and becomes {"__float__": "Infinity"}.
    """
    value = parse(raw, file, error, infinite)
    if not isinstance(value, dict):
        raise error("json.object", file=file, found=name_of(value))
    return value


def parse(raw: bytes, file: str, error: ErrorType = ConfigError, infinite: bool = False) -> Any:
    """Return the JSON value in these bytes: UTF-8, no byte-order mark, no duplicate key, finite numbers, at most 64 levels."""
    text = _text(raw, file, error)
    _scan(text, file, error, infinite)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise error("json.twice", file=file, name=Counter(name for name, _ in pairs).most_common(1)[0][0])
        return table

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=lambda name: {"__float__": name})
    except json.JSONDecodeError as broken:
        text_there = repr(text[broken.pos : broken.pos + 20])[1:-1]
        raise error("json.syntax", file=file, line=broken.lineno, column=broken.colno, found=text_there) from None
    if _HALF.search(raw):
        _refuse_halves(value, file, error)
    return value


def name_of(value: object) -> str:
    """Return JSON's name for this kind of value."""
    return _NAMES.get(type(value), type(value).__name__)


def _text(raw: bytes, file: str, error: ErrorType) -> str:
    if not raw.strip():
        raise error("json.empty", file=file)
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:4]:
        raise error("json.encoding", file=file, offset=0, found=raw[:4].hex(" "))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as broken:
        raise error("json.encoding", file=file, offset=broken.start, found=raw[broken.start : broken.start + 4].hex(" ")) from None


def _scan(text: str, file: str, error: ErrorType, infinite: bool = False) -> None:
    """Refuse, with its place, what Python's parser would accept or crash on; under `infinite` an `Infinity` may stand."""
    bare, strings = _STRING.subn("", text)
    pieces = strings + sum(map(bare.count, ",[{"))
    if pieces > MOST_PIECES:
        raise error("json.pieces", file=file, count=pieces, limit=MOST_PIECES)
    unusual = [] if _usual(bare) else _UNUSUAL.findall(bare)
    if any(_refused(number, infinite) for number in unusual) or not _shallow(_OTHER.sub("", bare)):
        _find(text, file, error, infinite)


def _usual(bare: str) -> bool:
    """True if nothing in a text without strings can match _UNUSUAL, which tries every character: most files, and all tokenizers."""
    words = bare.replace("true", "").replace("false", "").translate(_SPACES)
    return not any(letter in words for letter in "eENI") and max(map(len, words.split(","))) <= 20


def _shallow(brackets: str) -> bool:
    """True if brackets are paired and no deeper than the limit: each round removes one or two levels."""
    for _ in range(DEEPEST // 2):
        brackets = brackets.replace("[]", "").replace("{}", "")
    return not brackets


def _find(text: str, file: str, error: ErrorType, infinite: bool) -> None:
    """Raise at the first refused place, if any."""
    depth = 0
    for token in _TOKEN.finditer(text):
        at = token.start()
        first = text[at]
        if first == '"':
            continue
        if first in "[{":
            depth += 1
            if depth > DEEPEST:
                raise error("json.depth", file=file, limit=DEEPEST, **_place(text, at))
        elif first in "]}":
            depth -= 1
        elif (why := _refused(token.group(), infinite)) is not None:
            raise error(why.pop("key"), file=file, **why, **_place(text, at))


def _refused(number: str, infinite: bool = False) -> dict[str, Any] | None:
    """Return why a number is refused, too long or not finite; None if it is accepted or left to the parser."""
    if number == "NaN" or (number == "Infinity" and not infinite):
        return {"key": "json.finite", "found": number}
    digits = number.lstrip("-")
    limit = MOST_DIGITS if digits.isdigit() else LONGEST_NUMBER
    if len(digits) > limit:
        return {"key": "json.digits", "count": len(digits), "limit": limit}
    if ("e" in number or "E" in number) and not _finite(number):
        return {"key": "json.finite", "found": number}
    return None


def _finite(number: str) -> bool:
    """False only for a well-formed number beyond float64; the parser refuses malformed ones with their place."""
    try:
        return math.isfinite(float(number))
    except ValueError:
        return True


def _place(text: str, at: int) -> dict[str, int]:
    return {"line": text.count("\n", 0, at) + 1, "column": at - text.rfind("\n", 0, at)}


def _refuse_halves(value: Any, file: str, error: ErrorType) -> None:
    """Refuse a string with half a surrogate pair, which cannot be written as UTF-8 again."""
    waiting = [("", value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{place}.{name}".lstrip("."), inner) for name, inner in value.items()]
            waiting += [(place, name) for name in value]
        elif isinstance(value, list):
            waiting += [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
        elif isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            raise error("json.surrogate", file=file, place=place or "$")
