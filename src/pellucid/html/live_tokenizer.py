"""A tokenizer for the page's script (web/src/live/tokenizer.ts): its parts as data, each rule translated exactly, or refused by name.

    "(?i:'s|'t|…)|\\s+(?!\\S)"   ->  "(?:'[sSſ]|'[tT]|…)|\\p{White_Space}+(?!\\P{White_Space})"   an expression in JavaScript's words

Only published expressions are translated: JavaScript's \\s lacks U+0085 and has U+FEFF, its (?i:) is younger than many browsers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pellucid.errors import UseError
from pellucid.html.live_scripts import scripts
from pellucid.tokenizer.chat_encoder import fenceable
from pellucid.tokenizer.patterns import PUBLISHED, SHORT
from pellucid.tokenizer.pieces import TIDY
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tokenizer.tokenizer_file import vocabulary

NESTED = {r" ?[^(\s|[.,!?…。，、।۔،])]+": r" ?[^(\s|.,!?…。，、।۔،)]+"}  # BLOOM's: the library reads a set within the set
UNREAD = {"^▁+$"}
BY_CASE = r"(?:'[sS\u017f]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"  # U+017F is an s by Unicode's rules of case
NORMALIZERS = (
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "BertNormalizer", "Nmt"),
    *("Precompiled", "Replace", "Prepend", "ByteLevel"),
)
WORDS = (
    *("ByteLevel", "BertPreTokenizer", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "Split"),
    *("CharDelimiterSplit", "FixedLength", "UnicodeScripts"),
)
BEHAVIORS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
SAME = ("lstrip", "rstrip", "single_word")


def carried(tokenizer: Tokenizer | None, model: str, rows: int) -> dict[str, Any]:
    """Return the tokenizer's pieces and parts. A UseError names the part that the page's script does not have.

    model: its name.  rows: of its embedding.
    """
    if tokenizer is None:
        raise UseError("live.tokenizer", model=model, found="-")
    try:
        check_first(tokenizer.spec)
        text: dict[str, Any] = {
            "normalizer": list(normalizers(tokenizer.spec.get("normalizer"))),
            "words": list(words(tokenizer.spec.get("pre_tokenizer"))),
            "model": encoder(tokenizer),
            "added": added(tokenizer),
            "writing": writing(tokenizer.spec.get("decoder")),
        }
    except UnreadPartError as part:
        raise UseError("live.tokenizer", model=model, found=str(part)) from None
    ranks = tokenizer.merges()
    return {
        "pieces": [piece(tokenizer, id) for id in range(rows)],
        "merges": [" ".join(pair) for pair in sorted(ranks, key=ranks.__getitem__)],
        "around": around(tokenizer),
        "literal": [token["id"] for token in tokenizer.spec.get("added_tokens") or [] if text["writing"]["kind"] == "letters"],
        "text": text,
    }


class UnreadPartError(Exception):
    """A part of a tokenizer that the page's script does not have."""


def flat(part: Mapping[str, Any] | None, inner: str) -> Iterator[dict[str, Any]]:
    """Yield the components of a part, its sequences flattened."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield dict(part)
        return
    for one in part[inner]:
        yield from flat(one, inner)


def check_first(spec: Mapping[str, Any]) -> None:
    """Refuse a mark before the first word alone where normalizing may move what is first: the library asks where it stood in the text."""
    first = any(
        one["type"] == "Metaspace" and one.get("prepend_scheme") == "first" for one in flat(spec.get("pre_tokenizer"), "pretokenizers")
    )
    moving = [one["type"] for one in flat(spec.get("normalizer"), "normalizers") if not one["type"].startswith("NF")]
    if first and moving:
        raise UnreadPartError(f"{moving[0]} · Metaspace")


def normalizers(part: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    for one in flat(part, "normalizers"):
        if one["type"] not in NORMALIZERS:
            raise UnreadPartError(one["type"])
        yield one | ({"pattern": pattern(one["pattern"])} if one["type"] == "Replace" else {})


def words(part: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield what cuts a text into the words that are encoded apart."""
    for one in flat(part, "pretokenizers"):
        if one["type"] not in WORDS:
            raise UnreadPartError(one["type"])
        if one["type"] == "Split":
            if one["behavior"] not in BEHAVIORS:
                raise UnreadPartError(f"Split {one['behavior']}")
            yield one | {"pattern": pattern(one["pattern"])}
        elif one["type"] == "Metaspace":
            scheme = one.get("prepend_scheme") or ("always" if one.get("add_prefix_space", True) else "never")
            yield {"type": "Metaspace", "mark": one.get("replacement", "▁"), "scheme": scheme, "split": one.get("split", True) is not False}
        elif one["type"] == "UnicodeScripts":
            yield one | {"scripts": scripts()}
        else:
            yield one


def pattern(given: Mapping[str, str]) -> dict[str, str]:
    """Return a pattern, an expression translated."""
    if "String" in given:
        return {"String": given["String"]}
    source = given["Regex"]
    if source not in PUBLISHED or source in UNREAD:
        raise UnreadPartError(f"Regex {source}")
    return {
        "Regex": NESTED.get(source, source).replace(SHORT, BY_CASE).replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")
    }


def encoder(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return how a word becomes pieces, without the vocabulary. fenced: ids that no text becomes."""
    model, spec = tokenizer.spec["model"], tokenizer.spec
    names, ids = fenceable(spec, tokenizer.control), vocabulary(model)
    out: dict[str, Any] = {"type": model["type"], "fenced": sorted(id for piece, id in ids.items() if piece in names)}
    if model["type"] == "BPE":
        if any(" " in half for pair in model["merges"] for half in pair):
            raise UnreadPartError("BPE merges")
        flags = {name: model.get(name) is True for name in ("fuse_unk", "byte_fallback", "ignore_merges")}
        around = {"prefix": model.get("continuing_subword_prefix") or "", "suffix": model.get("end_of_word_suffix") or ""}
        return out | flags | around | {"unknown": ids.get(model.get("unk_token") or "")}
    if model["type"] == "WordPiece":
        prefix, longest = model.get("continuing_subword_prefix", "##"), model.get("max_input_chars_per_word", 100)
        return out | {"unknown": ids.get(model.get("unk_token", "[UNK]")), "prefix": prefix or "", "longest": longest}
    if model["type"] == "Unigram":
        fallback, scores = model.get("byte_fallback") is True, [score for _, score in model["vocab"]]
        return out | {"unknown": model.get("unk_id"), "byte_fallback": fallback, "scores": scores}
    return out | {"unknown": ids[model["unk_token"]]}  # WordLevel


def added(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the added tokens that a text may name. normalized: they are looked for in the normalized text, as it spells them."""
    out = []
    for token in tokenizer.spec.get("added_tokens") or []:
        if token.get("special") or token["id"] in tokenizer.control:
            continue
        if odd := [name for name in SAME if token.get(name)]:
            raise UnreadPartError(f"{token['content']} ({odd[0]})")
        out.append({"id": token["id"], "content": token["content"], "normalized": token.get("normalized") is True})
    return out


def writing(decoder: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return how pieces write bytes, as tokenizer/pieces.py reads a decoder."""
    parts = list(flat(decoder, "decoders"))
    kinds = [part["type"] for part in parts]
    if not parts:
        return {"kind": "apart"}
    if kinds == ["ByteLevel"]:
        return {"kind": "letters"}
    if kinds == ["WordPiece"]:
        tidy = [list(pair) for pair in TIDY] if parts[0].get("cleanup", True) else []
        return {"kind": "words", "prefix": parts[0].get("prefix", "##"), "tidy": tidy}
    if kinds == ["Metaspace"]:
        drops = parts[0].get("prepend_scheme", "always") != "never" and parts[0].get("add_prefix_space") is not False
        return {"kind": "marks", "mark": parts[0].get("replacement", "▁"), "drops": drops}
    swaps = [[part["pattern"]["String"], part["content"]] for part in parts if part["type"] == "Replace"]
    return {
        "kind": "swaps",
        "swaps": swaps,
        "fallback": "ByteFallback" in kinds,
        "strip": parts[-1]["start"] if kinds[-1] == "Strip" else 0,
    }


def around(tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids that the tokenizer's post-processor puts before a text, and those that it puts after it."""
    bare, framed = tokenizer.encode("a", special=False), tokenizer.encode("a")
    at = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
    return [framed[:at], framed[at + len(bare) :]]


def control(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the control tokens that an encoder's text may name, and the mask's id: a text that fills blanks names them."""
    own = [t for t in tokenizer.spec.get("added_tokens") or [] if t.get("special") or t["id"] in tokenizer.control]
    fields = ("id", "content", "lstrip", "rstrip")
    return {"tokens": [{name: token[name] for name in fields} for token in own], "mask": tokenizer.special.get("mask")}


def piece(tokenizer: Tokenizer, id: int) -> str | None:
    """Return the piece of an id as its file writes it; None for a row of the embedding without one."""
    return tokenizer.spelled(id) if id < tokenizer.size and tokenizer.pieces([id])[0].raw else None
