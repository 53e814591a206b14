"""A tokenizer as the keys of a GGUF file: the way back of tokenizer_keys.py, for tokenizers that llama.cpp has a name for."""

from collections.abc import Iterable
from typing import Any

from pellucid.checkpoint.gguf.pretokenizers import IGNORE_MERGES, NORMALIZED, PRE
from pellucid.checkpoint.gguf.tokenizer_keys import BYTE, CONTROL, ENDS, KEY, MARK, NAMED, UNKNOWN, UNUSED, USER, joined
from pellucid.errors import UseError
from pellucid.tokenizer.chat_template import DEFAULT
from pellucid.tokenizer.tokenizer import Tokenizer

Spec = dict[str, Any]


def tokenizer_keys_of(tokenizer: Tokenizer | None, rows: int, stops: Iterable[int]) -> Spec:
    """Return the keys of a tokenizer, for an embedding of `rows` rows. stops: the ids that end a text. A UseError if none fit it."""
    if tokenizer is None:
        return {f"{KEY}model": "no_vocab"} | {f"{KEY}{key}": i for key, i in zip(ENDS, stops, strict=False)}
    spec = tokenizer.spec
    model = spec["model"]
    lettered = kinds_in(spec.get("decoder"), "decoders") == ["ByteLevel"]
    if model["type"] != "BPE" or not (lettered or model.get("byte_fallback")):
        raise UseError("convert.tokenizer", file=tokenizer.file, found=model["type"])
    tokens, kinds = rows_of(spec, rows, lettered)
    own = byte_level(spec, tokenizer.file) if lettered else scored(spec, tokens, kinds, tokenizer.file)
    keys = {f"{KEY}{name}": value for name, value in {**own, "tokens": tokens, "token_type": kinds}.items()}
    keys |= {f"{KEY}{NAMED[name]}": i for name, i in tokenizer.special.items()}
    ends = list(dict.fromkeys([*([tokenizer.special["eos"]] if "eos" in tokenizer.special else []), *stops]))
    keys |= {f"{KEY}{key}": i for key, i in zip(ENDS, ends, strict=False)}
    keys |= frame(tokenizer)
    for name, template in tokenizer.templates.items():
        keys["tokenizer.chat_template" if name == DEFAULT else f"tokenizer.chat_template.{name}"] = template.source
    return keys


def kinds_in(part: Spec | None, inner: str) -> list[str]:
    """Return the types of a component's parts, in order."""
    return [p["type"] for p in parts(part, inner)]


def parts(part: Spec | None, inner: str) -> list[Spec]:
    """Return a component's parts, sequences flattened."""
    if part is None:
        return []
    return [p for each in part[inner] for p in parts(each, inner)] if part["type"] == "Sequence" else [part]


def rows_of(spec: Spec, rows: int, lettered: bool) -> tuple[list[str], list[int]]:
    """Return the text and the kind of every row of the embedding; a row without a token is unused padding."""
    model = spec["model"]
    tokens = {i: token for token, i in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, 1)
    for i, token in tokens.items():
        if not lettered and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            kinds[i] = BYTE
    for added in spec.get("added_tokens") or []:
        tokens[added["id"]], kinds[added["id"]] = added["content"], CONTROL if added.get("special") else USER
    if not lettered and model.get("unk_token") is not None:
        kinds[model["vocab"][model["unk_token"]]] = UNKNOWN
    return [tokens.get(i, f"[PAD{i}]") for i in range(rows)], [kinds.get(i, UNUSED) for i in range(rows)]


def shape_of(spec: Spec | None) -> list[tuple[object, ...]]:
    """Return what a pre-tokenizer does, without what changes nothing, so that two can be compared."""
    steps: list[tuple[object, ...]] = []
    for p in parts(spec, "pretokenizers"):
        if p["type"] == "Split":
            steps.append(("Split", *p["pattern"].items(), p["behavior"], p.get("invert", False)))
        elif p["type"] == "ByteLevel":
            steps.append(("ByteLevel", p.get("add_prefix_space", True), p.get("use_regex", True)))
        else:
            steps.append((p["type"], p.get("individual_digits")))
    return steps


def byte_level(spec: Spec, file: str) -> Spec:
    """Return the keys of GPT-2's kind of tokenizer."""
    normal = kinds_in(spec.get("normalizer"), "normalizers")
    cut, ignores = shape_of(spec.get("pre_tokenizer")), bool(spec["model"].get("ignore_merges"))
    for name, pre in PRE.items():
        wanted = ["NFC"] if name in NORMALIZED else []
        if shape_of(pre) == cut and (name in IGNORE_MERGES) == ignores and wanted == normal:
            merges = [" ".join(pair) for pair in spec["model"]["merges"]]
            return {"model": "gpt2", "pre": name} | ({"merges": merges} if merges else {})
    raise UseError("convert.tokenizer", file=file, found=[*normal, *kinds_in(spec.get("pre_tokenizer"), "pretokenizers")])


def scored(spec: Spec, tokens: list[str], kinds: list[int], file: str) -> Spec:
    """Return the keys of SentencePiece's kind: a piece's score falls with the rank of the first merge that makes it."""
    normal = parts(spec.get("normalizer"), "normalizers")
    begins = parts(spec.get("pre_tokenizer"), "pretokenizers")
    marks = [p for p in begins if p["type"] == "Metaspace"]
    spaced = any(p["type"] == "Prepend" for p in normal) or any(p.get("prepend_scheme", "always") != "never" for p in marks)
    known = {"Prepend", "Replace"}.issuperset(p["type"] for p in normal) and {"Metaspace", "Split"}.issuperset(p["type"] for p in begins)
    merges = [tuple(pair) for pair in spec["model"]["merges"]]
    scores = dict.fromkeys(tokens, 0.0)
    for rank, (left, right) in reversed([*enumerate(merges, 1)]):
        scores[left + right] = -float(rank)
    of_rows = [scores[token] for token in tokens]
    vocab = {token: i for i, token in enumerate(tokens) if kinds[i] != UNUSED}
    again = joined(vocab, kinds, of_rows)
    if (
        not known
        or not any(p.get("content") == MARK or p["type"] == "Metaspace" for p in [*normal, *begins])
        or {*map(tuple, again)} != {*merges}
    ):
        raise UseError("convert.tokenizer", file=file, found=[p["type"] for p in [*normal, *begins]])
    return {"model": "llama", "pre": "default", "scores": of_rows, "add_space_prefix": spaced}


def frame(tokenizer: Tokenizer) -> Spec:
    """Return which tokens begin and end a text, from what the tokenizer adds to an empty one."""
    ids, special = tokenizer.encode(""), tokenizer.special
    begin, end = ids[:1] == [special.get("bos")], ids[-1:] == [special.get("eos")] and len(ids) > 0
    if len(ids) != begin + end and ids:
        raise UseError("convert.frame", file=tokenizer.file, found=", ".join(map(tokenizer.piece, ids)))
    return {f"{KEY}add_bos_token": begin, f"{KEY}add_eos_token": end and len(ids) > begin}
