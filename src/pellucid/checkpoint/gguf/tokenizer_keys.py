"""The tokenizer in a GGUF file's keys as the tokenizer.json of the same model, and its chat template.

tokenizer.ggml.model  gpt2     byte-level BPE: tokens, merges, and the name of the expression that cuts a text into words
                      llama    SentencePiece's BPE: tokens and their scores, by which pieces are joined; bytes where no piece fits
tokenizer.ggml.token_type      1 plain, 2 unknown, 3 control, 4 added by a user, 5 unused, 6 a byte
"""

from collections.abc import Mapping
from typing import Any

from pellucid.checkpoint.gguf.pretokenizers import BEGUN, IGNORE_MERGES, NORMALIZED, PRE
from pellucid.errors import TokenizerError
from pellucid.messages import All
from pellucid.tokenizer.chat_template import DEFAULT, Template
from pellucid.tokenizer.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
UNKNOWN, CONTROL, USER, UNUSED, BYTE = 2, 3, 4, 5, 6
NAMED = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id", "sep": "seperator_token_id",
    "cls": "cls_token_id", "mask": "mask_token_id",
}  # fmt: skip
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn, which a file may leave unnamed.
TURN_ENDS = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|eom_id|>", "<|return|>", "<|call|>", "<|user|>"}
MARK = "▁"
Keys = Mapping[str, Any]
Spec = dict[str, Any]


def special_ids(keys: Keys, rows: int) -> dict[str, int]:
    """Return the ids of the named special tokens, of those below `rows`."""
    values = {name: keys.get(KEY + key) for name, key in NAMED.items()}
    return {name: i for name, i in values.items() if type(i) is int and 0 <= i < rows}


def stops(keys: Keys, rows: int) -> list[int]:
    """Return the ids below `rows` that end a text: those that the file names, and control tokens that are known to end a turn."""
    tokens = texts(keys, "tokens")
    named = [keys.get(KEY + key) for key in ENDS]
    kinds = numbers(keys, "token_type")
    turns = [i for i, token in enumerate(tokens) if token in TURN_ENDS and i < len(kinds) and kinds[i] == CONTROL]
    return list(dict.fromkeys(i for i in [*named, *turns] if type(i) is int and 0 <= i < rows))


def texts(keys: Keys, name: str) -> list[str]:
    """Return a key's list of texts, [] if there is none."""
    value = keys.get(KEY + name)
    return value if isinstance(value, list) else []


def numbers(keys: Keys, name: str) -> list[Any]:
    """Return a key's list of numbers, [] if there is none."""
    value = keys.get(KEY + name)
    return [] if value is None or isinstance(value, str | int | float | list) else list(value.tolist())


def flag(keys: Keys, name: str, default: bool, file: str) -> bool:
    """Return a truth value among the keys."""
    value = keys.get(KEY + name, default)
    if type(value) is not bool:
        raise TokenizerError("gguf.key", file=file, name=KEY + name, found=repr(value))
    return value


def tokenizer(keys: Keys, file: str, architecture: str) -> Tokenizer | None:
    """Return the tokenizer of a file's keys, None if it has none."""
    made = spec(keys, file, architecture)
    if made is None:
        return None
    tokens = texts(keys, "tokens")
    templates = {name: Template(text, f"{file}: {key}") for name, key, text in chat_templates(keys, file)}
    return Tokenizer(made, file, {name: tokens[i] for name, i in special_ids(keys, len(tokens)).items()}, templates)


def chat_templates(keys: Keys, file: str) -> list[tuple[str, str, str]]:
    """Return the name, the key and the text of every chat template."""
    start = "tokenizer.chat_template"
    values = []
    for key, text in keys.items():
        if key != start and not key.startswith(f"{start}."):
            continue
        if not isinstance(text, str):
            raise TokenizerError("gguf.key", file=file, name=key, found=type(text).__name__)
        values.append((key.removeprefix(start).removeprefix(".") or DEFAULT, key, text))
    return values


def settings(keys: Keys, file: str) -> Spec:
    """Return the tokenizer_config.json: the special tokens by name, and the chat template."""
    tokens = texts(keys, "tokens")
    named = {f"{name}_token": tokens[i] for name, i in special_ids(keys, len(tokens)).items()}
    templates = [{"name": name, "template": text} for name, _, text in chat_templates(keys, file)]
    chat = {"chat_template": templates[0]["template"] if len(templates) == 1 else templates} if templates else {}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **named, **chat}


def spec(keys: Keys, file: str, architecture: str) -> Spec | None:
    """Return the tokenizer.json of a file's keys, None if it has none."""
    model = keys.get(f"{KEY}model")
    if model in (None, "none", "no_vocab"):
        return None
    if model not in ("gpt2", "llama"):
        raise TokenizerError("gguf.tokenizer", file=file, name=f"{KEY}model", found=model, allowed="gpt2, llama")
    tokens, kinds = texts(keys, "tokens"), numbers(keys, "token_type")
    kinds = kinds or [1] * len(tokens)
    if not tokens or len(kinds) != len(tokens):
        raise TokenizerError(
            "gguf.lengths", file=file, first=f"{KEY}tokens", count=len(tokens), second=f"{KEY}token_type", other=len(kinds)
        )
    vocab: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind != UNUSED or not token.startswith("[PAD"):  # rows that fill the embedding have no text
            if token in vocab:
                raise TokenizerError("tokenizer.same_token", file=file, token=token, first=vocab[token], second=i)
            vocab[token] = i
    made = byte_level(keys, vocab, file) if model == "gpt2" else sentencepiece(keys, vocab, kinds, file)
    right = architecture == "phi3" and model == "llama"  # Phi-3's own tokenizer takes the space after these
    flags = {"single_word": False, "lstrip": False, "normalized": False}
    added = [(i, tokens[i], kinds[i]) for i in vocab.values() if kinds[i] in (UNKNOWN, CONTROL, USER)]
    strips = {i: right and token not in ("<s>", "<unk>", "<|endoftext|>") for i, token, _ in added}
    made["added_tokens"] = [
        {"id": i, "content": token, "rstrip": strips[i], "special": kind != USER, **flags} for i, token, kind in added if token
    ]
    made["post_processor"] = framed(keys, tokens, made.pop("begun"), made["post_processor"], file)
    return {"version": "1.0", "truncation": None, "padding": None, **made}


def byte_level(keys: Keys, vocab: dict[str, int], file: str) -> Spec:
    """Return GPT-2's kind of tokenizer."""
    pre = keys.get(f"{KEY}pre", "default")
    if pre not in PRE:
        raise TokenizerError("gguf.tokenizer", file=file, name=f"{KEY}pre", found=pre, allowed=All(PRE))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "vocab": vocab, "merges": texts(keys, "merges"), "ignore_merges": pre in IGNORE_MERGES}
    normal = {"type": "NFC"} if pre in NORMALIZED else None
    return {
        "normalizer": normal, "pre_tokenizer": PRE[pre], "post_processor": level, "decoder": level, "model": model, "begun": pre in BEGUN,
    }  # fmt: skip


def sentencepiece(keys: Keys, vocab: dict[str, int], kinds: list[int], file: str) -> Spec:
    """Return Llama 2's kind of tokenizer: the scores say in which order pieces are joined."""
    scores = numbers(keys, "scores")
    if len(scores) != len(kinds):
        raise TokenizerError(
            "gguf.lengths", file=file, first=f"{KEY}token_type", count=len(kinds), second=f"{KEY}scores", other=len(scores)
        )
    bytes_there = any(kind == BYTE for kind in kinds)
    unknown = next((token for token, i in vocab.items() if kinds[i] == UNKNOWN), None)
    model = {
        "type": "BPE", "unk_token": unknown, "fuse_unk": True, "byte_fallback": bytes_there, "vocab": vocab,
        "merges": joined(vocab, kinds, scores),
    }  # fmt: skip
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    spaced = flag(keys, "add_space_prefix", True, file)
    normal: Spec = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, mark]} if spaced else mark
    undone = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    undone += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    return {
        "normalizer": normal, "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Sequence", "decoders": undone},
        "model": model, "begun": True,
    }  # fmt: skip


def joined(vocab: dict[str, int], kinds: list[int], scores: list[float]) -> list[list[str]]:
    """Return the merges that the scores mean: every way to make a piece of two others, the piece of the highest score first."""
    plain = {token: i for token, i in vocab.items() if kinds[i] == 1}
    values = []
    for token, i in plain.items():
        ways = [(token[:cut], token[cut:]) for cut in range(1, len(token)) if token[:cut] in plain and token[cut:] in plain]
        ways.sort(key=lambda way: (plain[way[0]], plain[way[1]]))
        values += [(scores[i], left, right) for left, right in ways]
    values.sort(key=lambda way: (way[0], len(way[1]), len(way[2])), reverse=True)
    return [[left, right] for _, left, right in values]


def framed(keys: Keys, tokens: list[str], begun: bool, level: Spec | None, file: str) -> Spec | None:
    """Return the post-processor: the token that begins a text and the one that ends it, where the file asks for them."""
    special = special_ids(keys, len(tokens))
    begin = flag(keys, "add_bos_token", begun, file) and "bos" in special
    end = flag(keys, "add_eos_token", False, file) and "eos" in special
    if not begin and not end:
        return level
    before = [tokens[special["bos"]]] if begin else []
    after = [tokens[special["eos"]]] if end else []

    def line(*texts: str) -> list[Spec]:
        parts = [({"SpecialToken": {"id": t, "type_id": 0}}) for t in before]
        inner: list[Spec] = []
        for i, text in enumerate(texts):
            inner += [*parts, {"Sequence": {"id": text, "type_id": i}}, *({"SpecialToken": {"id": t, "type_id": i}} for t in after)]
        return inner

    ids = {t: {"id": t, "ids": [special[n]], "tokens": [t]} for n, on in (("bos", begin), ("eos", end)) if on for t in [tokens[special[n]]]}
    frame = {"type": "TemplateProcessing", "single": line("A"), "pair": line("A", "B"), "special_tokens": ids}
    return frame if level is None else {"type": "Sequence", "processors": [level, frame]}
