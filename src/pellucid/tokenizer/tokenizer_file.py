"""The check of a tokenizer.json before the library reads it, which panics, aborts or renumbers silently on files refused here by name.

`check` returns the same tokenizer without truncation, padding and dropout, so that a text's ids depend on the text alone.
"""

import base64
import binascii
import math
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

from pellucid.checkpoint.json_file import name_of
from pellucid.errors import TokenizerError
from pellucid.tokenizer.patterns import PUBLISHED

MODELS = ("BPE", "WordPiece", "Unigram", "WordLevel")
NORMALIZERS = (
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "BertNormalizer", "Nmt"),
    *("Precompiled", "Replace", "Prepend", "ByteLevel", "Sequence"),
)
PRE_TOKENIZERS = (
    *("ByteLevel", "BertPreTokenizer", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "Split"),
    *("UnicodeScripts", "CharDelimiterSplit", "FixedLength", "Sequence"),
)
PROCESSORS = ("TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing", "Sequence")
DECODERS = ("ByteLevel", "Metaspace", "WordPiece", "Replace", "ByteFallback", "Fuse", "Strip", "Sequence")

MOST_PARTS = 32  # components of a normalizer, pre-tokenizer, post-processor or decoder
MOST_GROWTH = 4  # times a text may grow by replacements
MOST_PREPENDED = 64  # characters put before each stretch between added tokens
LONGEST_WORD = 256  # characters that WordPiece tries to cut: its steps grow with the cube
LONGEST_MAPPED = 64  # bytes that a precompiled map may put for a character; the longest of Unicode's own has 33
LARGEST_ID = (1 << 24) - 1
LONGEST_ADDED = 10_000  # characters of an added token
MOST_ENTRIES = 1 << 20  # of a vocabulary, of merges, of added tokens: XLM-V has 901,629 pieces, Gemma 3 514,906 merges

Spec = dict[str, Any]


def check(spec: Spec, file: str) -> Spec:
    """Return the tokenizer that `spec` describes, safe to pass to the library. A TokenizerError with the JSON path of the fault."""
    if spec.get("version") != "1.0":
        raise TokenizerError("tokenizer.version", file=file, found=spec.get("version"))
    spec = {**spec, "truncation": None, "padding": None, "model": _model(_object(spec.get("model"), "model", file), file)}
    vocab = vocabulary(spec["model"])
    ids = _added(spec, vocab, file)
    for part in _components(spec, "normalizer", "normalizers", NORMALIZERS, file):
        if part["type"] == "Precompiled":
            _charsmap(part, file)
    _growth(spec, file)
    for part in _components(spec, "pre_tokenizer", "pretokenizers", PRE_TOKENIZERS, file):
        if part["type"] == "FixedLength" and not (type(part.get("length", 5)) is int and part.get("length", 5) > 0):
            raise TokenizerError("tokenizer.value", file=file, field="pre_tokenizer.length", found=part["length"])
    for part in _components(spec, "decoder", "decoders", DECODERS, file):
        _decoder(part, file)
    for part in _components(spec, "post_processor", "processors", PROCESSORS, file):
        _processor(part, ids, file)
    return spec


def vocabulary(model: Spec) -> dict[str, int]:
    """Return every piece of a checked model with its id."""
    vocab = model["vocab"]
    return {piece: index for index, (piece, _) in enumerate(vocab)} if model["type"] == "Unigram" else vocab


def _object(value: Any, field: str, file: str) -> Spec:
    if not isinstance(value, dict):
        raise TokenizerError("tokenizer.kind", file=file, field=field, found=name_of(value), expected="object")
    _few(value, field, file)
    return value


def _array(value: Any, field: str, file: str) -> list[Any]:
    if not isinstance(value, list):
        raise TokenizerError("tokenizer.kind", file=file, field=field, found=name_of(value), expected="array")
    _few(value, field, file)
    return value


def _few(value: Spec | list[Any], field: str, file: str) -> None:
    """Refuse more entries than a tokenizer can need: each costs microseconds and a kilobyte."""
    if len(value) > MOST_ENTRIES:
        raise TokenizerError("tokenizer.many", file=file, field=field, count=len(value), limit=MOST_ENTRIES)


def _string(value: Any, field: str, file: str) -> str:
    if not isinstance(value, str):
        raise TokenizerError("tokenizer.kind", file=file, field=field, found=name_of(value), expected="string")
    return value


def _model(model: Spec, file: str) -> Spec:
    model = {"type": _type(model), **model}
    if model["type"] not in MODELS:
        raise TokenizerError("tokenizer.type", file=file, field="model", found=model["type"], allowed=", ".join(MODELS))
    if model["type"] == "Unigram":
        return _unigram(model, file)
    vocab = _object(model.get("vocab"), "model.vocab", file)
    owners: dict[int, str] = {}
    for piece, index in vocab.items():
        if type(index) is not int or not 0 <= index <= LARGEST_ID:
            raise TokenizerError("tokenizer.id", file=file, field="model.vocab", token=piece, found=index, limit=LARGEST_ID)
        if owners.setdefault(index, piece) != piece:
            raise TokenizerError("tokenizer.same_id", file=file, left=owners[index], right=piece, id=index)
    # published files of GPT-2 write "" for none
    for field in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if field in model and (value := model[field]) is not None:
            model[field] = _string(value, f"model.{field}", file) or None
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in vocab:
        raise TokenizerError("tokenizer.unknown", file=file, field="unk_token", found=unknown)
    longest = model.get("max_input_chars_per_word", 100)
    if type(longest) is not int or not 0 < longest <= LONGEST_WORD:
        raise TokenizerError("tokenizer.value", file=file, field="model.max_input_chars_per_word", found=longest)
    if model["type"] == "BPE":
        model["dropout"] = None
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = _merges(_array(model.get("merges"), "model.merges", file), vocab, prefix, file)
    return model


def _type(model: Spec) -> Any:
    """Return the model's type; files from before 2021 leave it to their fields."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _unigram(model: Spec, file: str) -> Spec:
    vocab = _array(model.get("vocab"), "model.vocab", file)
    for index, pair in enumerate(vocab):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) in (int, float)):
            raise TokenizerError("tokenizer.pair", file=file, index=index, found=pair)
    unknown = model.get("unk_id")
    if not vocab or (unknown is not None and not (type(unknown) is int and 0 <= unknown < len(vocab))):
        raise TokenizerError("tokenizer.unknown", file=file, field="unk_id", found=unknown)
    return model


def _merges(merges: list[Any], vocab: Spec, prefix: str, file: str) -> list[list[str]]:
    """Return the merges as pairs; each must join two pieces of the vocabulary to a third, else the library may panic.

    Sound merges pass all together; one after the other they are only looked at to locate a fault.
    """
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if _sound(pairs, vocab, prefix):
        return pairs
    for index, pair in enumerate(pairs):
        if type(pair) is not list or len(pair) != 2 or not all(type(half) is str for half in pair) or not pair[1].startswith(prefix):
            raise TokenizerError("tokenizer.merge_form", file=file, index=index, found=merges[index])
        left, right = pair
        merged = left + right[len(prefix) :]
        if not (left and right and left in vocab and right in vocab and merged in vocab):
            missing = next(piece for piece in (left, right, merged) if not piece or piece not in vocab)
            raise TokenizerError("tokenizer.merge", file=file, index=index, left=left, right=right, missing=missing)
    return pairs


def _sound(pairs: list[Any], vocab: Spec, prefix: str) -> bool:
    """Return whether every pair is one of two pieces of the vocabulary that join to a third."""
    if not pairs:
        return True
    if {*map(type, pairs)} != {list} or {*map(len, pairs)} != {2}:
        return False
    lefts, rights = zip(*pairs, strict=True)
    if {*map(type, lefts), *map(type, rights)} != {str} or not all(map(str.startswith, rights, repeat(prefix))):
        return False
    joined = map(str.__add__, lefts, (right[len(prefix) :] for right in rights) if prefix else rights)
    return all(lefts) and all(rights) and all(map(vocab.__contains__, chain(lefts, rights, joined)))


def _added(spec: Spec, vocab: dict[str, int], file: str) -> dict[int, str]:
    """Return all ids with their tokens, once the added tokens agree with the vocabulary and with each other."""
    owners = {index: piece for piece, index in vocab.items()}
    seen: set[str] = set()
    tokens = _array([] if spec.get("added_tokens") is None else spec["added_tokens"], "added_tokens", file)
    for place, token in enumerate(tokens):
        field = f"added_tokens[{place}]"
        content = _string(_object(token, field, file).get("content"), f"{field}.content", file)
        index = token.get("id")
        if not 0 < len(content) <= LONGEST_ADDED:
            raise TokenizerError("tokenizer.added_length", file=file, field=field, count=len(content), limit=LONGEST_ADDED)
        if type(index) is not int or not 0 <= index <= LARGEST_ID:
            raise TokenizerError("tokenizer.id", file=file, field=field, token=content, found=index, limit=LARGEST_ID)
        for flag in ("special", "single_word", "lstrip", "rstrip", "normalized"):
            if not isinstance(token.get(flag, False), bool):
                raise TokenizerError("tokenizer.kind", file=file, field=f"{field}.{flag}", found=name_of(token[flag]), expected="boolean")
        if content in seen:
            raise TokenizerError("tokenizer.added_twice", file=file, field=field, token=content)
        seen.add(content)
        if vocab.get(content, index) != index:
            raise TokenizerError("tokenizer.added_id", file=file, field=field, token=content, found=index, expected=vocab[content])
        if owners.setdefault(index, content) != content:
            raise TokenizerError("tokenizer.same_id", file=file, left=owners[index], right=content, id=index)
    return owners


def _components(spec: Spec, field: str, inner: str, allowed: tuple[str, ...], file: str) -> Iterator[Spec]:
    """Yield the components under a field, sequences flattened, each of a known type."""
    if spec.get(field) is None:
        return
    waiting = [(field, spec[field])]
    count = 0
    while waiting:
        place, part = waiting.pop()
        count += 1
        if count > MOST_PARTS:
            raise TokenizerError("tokenizer.parts", file=file, field=field, limit=MOST_PARTS)
        kind = _object(part, place, file).get("type")
        if kind not in allowed:
            raise TokenizerError("tokenizer.type", file=file, field=place, found=kind, allowed=", ".join(allowed))
        if kind == "Sequence":
            parts = _array(part.get(inner), f"{place}.{inner}", file)
            waiting += [(f"{place}.{inner}[{i}]", parts[i]) for i in reversed(range(len(parts)))]
        else:
            yield part


def _charsmap(part: Spec, file: str) -> None:
    """Check a precompiled map: a length, a trie of that many bytes, and text; the library allocates what the length claims."""
    try:
        raw = base64.b64decode(_string(part.get("precompiled_charsmap"), "normalizer.precompiled_charsmap", file), validate=True)
    except (binascii.Error, ValueError):
        raise TokenizerError("tokenizer.charsmap", file=file, size=None, trie=None) from None
    trie = int.from_bytes(raw[:4], "little")
    if len(raw) < 8 or trie == 0 or trie % 4 or trie > len(raw) - 4:
        raise TokenizerError("tokenizer.charsmap", file=file, size=len(raw), trie=trie)
    longest = max(map(len, raw[4 + trie :].split(b"\0")))
    if longest > LONGEST_MAPPED:
        raise TokenizerError("tokenizer.mapped", file=file, count=longest, limit=LONGEST_MAPPED)


def _growth(spec: Spec, file: str) -> None:
    """Refuse replacements whose growth multiplies too far: twenty-eight doublings are a quarter of a billion."""
    factor, before = 1, 0
    for part in _components(spec, "normalizer", "normalizers", NORMALIZERS, file):
        if part["type"] == "Replace":
            content = _string(part.get("content"), "normalizer.content", file)
            pattern = _object(part.get("pattern"), "normalizer.pattern", file)
            if "String" in pattern:
                shortest = len(_string(pattern["String"], "normalizer.pattern.String", file))
                if not shortest:
                    raise TokenizerError("tokenizer.value", file=file, field="normalizer.pattern.String", found='""')
                factor *= max(1, math.ceil(len(content) / shortest))
            else:
                empty = pattern.get("Regex") not in PUBLISHED  # an expression may match nothing, before each character
                factor *= max(1, len(content) + empty)
        elif part["type"] == "Prepend":
            before += len(_string(part.get("prepend"), "normalizer.prepend", file))
        if factor > MOST_GROWTH or before > MOST_PREPENDED:
            raise TokenizerError("tokenizer.growth", file=file, factor=factor, limit=MOST_GROWTH, before=before, most=MOST_PREPENDED)


def _decoder(part: Spec, file: str) -> None:
    if part["type"] == "Replace":
        pattern = _object(part.get("pattern"), "decoder.pattern", file)
        if not _string(pattern.get("String"), "decoder.pattern.String", file):
            raise TokenizerError("tokenizer.value", file=file, field="decoder.pattern.String", found='""')
        _string(part.get("content"), "decoder.content", file)
    elif part["type"] == "Strip":
        for field, most in (("start", 16), ("stop", 0)):
            if type(part.get(field)) is not int or not 0 <= part[field] <= most:
                raise TokenizerError("tokenizer.value", file=file, field=f"decoder.{field}", found=part.get(field))
        if part.get("content") != " ":
            raise TokenizerError("tokenizer.value", file=file, field="decoder.content", found=part.get("content"))


def _processor(part: Spec, ids: dict[int, str], file: str) -> None:
    if part["type"] in ("BertProcessing", "RobertaProcessing"):
        for field in ("sep", "cls"):
            pair = part.get(field)
            if not (isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int and ids.get(pair[1]) == pair[0]):
                raise TokenizerError("tokenizer.template", file=file, field=f"post_processor.{field}", token=pair)
    if part["type"] != "TemplateProcessing":
        return
    known = _object(part.get("special_tokens"), "post_processor.special_tokens", file)
    for name, token in known.items():
        field = f"post_processor.special_tokens.{name}"
        numbers = _array(_object(token, field, file).get("ids"), f"{field}.ids", file)
        tokens = _array(token.get("tokens"), f"{field}.tokens", file)
        if token.get("id") != name or len(numbers) != len(tokens):
            raise TokenizerError("tokenizer.template", file=file, field=field, token=token.get("id"))
        for number, content in zip(numbers, tokens, strict=True):
            if type(number) is not int or ids.get(number) != content:
                raise TokenizerError("tokenizer.template", file=file, field=field, token=f"{content} ({number})")
    for field in ("single", "pair"):
        items = _array(part.get(field), f"post_processor.{field}", file)
        if len(items) > MOST_PARTS:
            raise TokenizerError("tokenizer.parts", file=file, field=f"post_processor.{field}", limit=MOST_PARTS)
        for index, item in enumerate(items):
            place = f"post_processor.{field}[{index}]"
            if _object(item, place, file).keys() == {"SpecialToken"}:
                named = _object(item["SpecialToken"], place, file).get("id")
                if not isinstance(named, str) or named not in known:
                    raise TokenizerError("tokenizer.template", file=file, field=place, token=named)
