"""Tokenizer files that are damaged or hostile: refused by name before the library sees them, and its own faults become our errors."""

import base64
import copy
import importlib
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
import transformers.convert_slow_tokenizer
import transformers.models.qwen2.tokenization_qwen2
import transformers.models.qwen3_5.tokenization_qwen3_5

from pellucid.errors import TokenizerError
from pellucid.tokenizer import chat_encoder, limited_process, tokenizer, tokenizer_file
from pellucid.tokenizer.backend import LocalEncoder, RemoteEncoder, guarded, unpublished
from pellucid.tokenizer.patterns import PUBLISHED
from pellucid.tokenizer.tokenizer import Tokenizer
from vocabularies import ADDED, KINDS, TEXTS, Spec, put, spec


def charsmap(raw: bytes) -> Spec:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
HOSTILE: list[tuple[str, str, Any, str]] = [
    ("bytes", "version", "2.0", "tokenizer.version"),
    ("bytes", "version", "-", "tokenizer.version"),
    ("bytes", "model", None, "tokenizer.kind"),
    ("bytes", "model", "-", "tokenizer.kind"),
    ("bytes", "model/type", "Magic", "tokenizer.type"),
    ("bytes", "model/type", ["BPE"], "tokenizer.type"),
    ("bytes", "model/vocab", [], "tokenizer.kind"),
    ("bytes", "model/vocab", {}, "tokenizer.merge"),
    ("bytes", "model/merges", "-", "tokenizer.kind"),
    ("bytes", "normalizer", {"type": "Magic"}, "tokenizer.type"),
    ("bytes", "normalizer", [], "tokenizer.kind"),
    ("bytes", "pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Magic"}]}, "tokenizer.type"),
    ("bytes", "pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}, "tokenizer.library"),
    ("bytes", "pre_tokenizer", {"type": "FixedLength", "length": 0}, "tokenizer.value"),
    ("bytes", "decoder", {"type": "CTC"}, "tokenizer.type"),
    ("bytes", "decoder", {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}, "tokenizer.decoder"),
    ("bytes", "decoder", {"type": "Strip", "content": " ", "start": 1, "stop": 0}, "tokenizer.decoder"),
    ("bytes", "model/merges/0", ["Ġ", "zz"], "tokenizer.merge"),
    ("bytes", "model/merges/0", ["Ġ", "Ġĉĉ"], "tokenizer.merge"),
    ("bytes", "model/merges/0", ["Ġ", ""], "tokenizer.merge"),
    ("bytes", "model/merges/0", "Ġ", "tokenizer.merge_form"),
    ("bytes", "model/merges/0", "Ġ t h", "tokenizer.merge_form"),
    ("bytes", "model/merges/0", [1, 2], "tokenizer.merge_form"),
    ("bytes", "model/continuing_subword_prefix", "####", "tokenizer.merge_form"),
    ("bytes", "model/unk_token", "<none>", "tokenizer.unknown"),
    ("unigram", "model/unk_id", 10**6, "tokenizer.unknown"),
    ("unigram", "model/unk_id", True, "tokenizer.unknown"),
    ("unigram", "model/vocab/3", ["a"], "tokenizer.pair"),
    ("unigram", "model/vocab/3", ["a", True], "tokenizer.pair"),
    ("unigram", "model/vocab", [], "tokenizer.unknown"),
    ("wordpiece", "model/unk_token", "none", "tokenizer.unknown"),
    ("unigram", "normalizer", charsmap(b"abc"), "tokenizer.charsmap"),
    ("unigram", "normalizer", charsmap(b"twelve bytes"), "tokenizer.charsmap"),
    ("unigram", "normalizer", charsmap((2**32 - 4).to_bytes(4, "little") + b"1234"), "tokenizer.charsmap"),
    ("unigram", "normalizer", charsmap(bytes(12)), "tokenizer.charsmap"),
    ("unigram", "normalizer", {"type": "Precompiled", "precompiled_charsmap": "?"}, "tokenizer.charsmap"),
    ("unigram", "normalizer", charsmap((4).to_bytes(4, "little") + b"trie" + b"x" * 65 + b"\0"), "tokenizer.mapped"),
    ("unigram", "normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 3}, "tokenizer.growth"),
    ("unigram", "normalizer", {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "aaaa"}, "tokenizer.growth"),
    ("wordpiece", "model/max_input_chars_per_word", 10**9, "tokenizer.value"),
    ("wordpiece", "model/max_input_chars_per_word", True, "tokenizer.value"),
    ("unigram", "normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 28}, "tokenizer.growth"),
    ("unigram", "normalizer", {"type": "Prepend", "prepend": "a" * 1000}, "tokenizer.growth"),
    ("unigram", "normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}, "tokenizer.parts"),
    ("unigram", "normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "a"}, "tokenizer.value"),
    ("wordpiece", "post_processor/single/0/SpecialToken/id", "[NONE]", "tokenizer.template"),
    ("wordpiece", "post_processor/special_tokens/[CLS]/ids", [77777], "tokenizer.template"),
    ("wordpiece", "post_processor/special_tokens/[CLS]/ids", [2], "tokenizer.template"),
    ("wordpiece", "post_processor/special_tokens/[CLS]/ids", [], "tokenizer.template"),
    ("wordpiece", "post_processor", {"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 1]}, "tokenizer.template"),
    ("bytes", "model/vocab/a", -1, "tokenizer.id"),
    ("bytes", "model/vocab/a", 2**32, "tokenizer.id"),
    ("bytes", "model/vocab/a", 4_000_000_000, "tokenizer.id"),
    ("bytes", "model/vocab/a", 1.0, "tokenizer.id"),
    ("bytes", "model/vocab/a", True, "tokenizer.id"),
    ("bytes", "model/vocab/a", 5, "tokenizer.same_id"),
    ("bytes", "added_tokens/0/id", 5, "tokenizer.added_id"),
    ("bytes", "added_tokens/2", {**ADDED, "id": 7}, "tokenizer.same_id"),
    ("bytes", "added_tokens/2", {**ADDED, "id": 999}, "tokenizer.renumbered"),
    ("bytes", "added_tokens/2", {**ADDED, "id": 2**32}, "tokenizer.id"),
    ("bytes", "added_tokens/2", {**ADDED, "content": ""}, "tokenizer.added_length"),
    ("bytes", "added_tokens/2", {**ADDED, "content": "x" * 10**6}, "tokenizer.added_length"),
    ("bytes", "added_tokens/2", {**ADDED, "content": "<|im_end|>"}, "tokenizer.added_twice"),
    ("bytes", "added_tokens/2", {**ADDED, "special": "yes"}, "tokenizer.kind"),
    ("bytes", "added_tokens", {}, "tokenizer.kind"),
]


@pytest.mark.parametrize(("kind", "path", "value", "key"), HOSTILE, ids=range(len(HOSTILE)))
def test_refused(kind: str, path: str, value: Any, key: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer(put(kind, path, value), "tokenizer.json")
    assert caught.value.key == key and str(caught.value).startswith("tokenizer.json: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize(("kind", "path", "value", "key"), [row for row in HOSTILE if "merge" in row[3]])
def test_merges_are_looked_at_one_after_the_other_for_a_fault_alone(
    kind: str, path: str, value: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sound ones pass all together, the others do not; each way gives the same pairs."""
    hostile, looks = put(kind, path, value), list[bool]()
    sound = tokenizer_file._sound
    monkeypatch.setattr(tokenizer_file, "_sound", lambda *given: looks.append(sound(*given)) or looks[-1])
    with pytest.raises(TokenizerError):
        tokenizer_file.check(hostile, "f")
    quick = tokenizer_file.check(put(kind, "version", "1.0"), "f")
    assert looks == [False, True]
    monkeypatch.setattr(tokenizer_file, "_sound", lambda *given: False)
    assert tokenizer_file.check(put(kind, "version", "1.0"), "f") == quick


def split(pattern: str) -> Spec:
    parts = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, LEVEL]
    return put("bytes", "pre_tokenizer", {"type": "Sequence", "pretokenizers": parts})


LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
QWEN2 = transformers.models.qwen2.tokenization_qwen2.PRETOKENIZE_REGEX


def test_an_unpublished_expression_works_in_a_process_of_its_own() -> None:
    """The same expression with a needless bracket is not a published one: it gives the same ids, from a limited process."""
    known, unknown = Tokenizer(split(QWEN2), "f"), Tokenizer(split(f"(?:{QWEN2})"), "f")
    assert type(known._plain) is LocalEncoder and type(unknown._plain) is RemoteEncoder
    for text in TEXTS:
        assert known.encode(text) == unknown.encode(text) == unknown.encode(text, parse=True)
    control = known.encode("<|im_end|>", parse=True)
    assert unknown.encode("<|im_end|>", parse=True) == control != unknown.encode("<|im_end|>")


def test_an_expression_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_process, "SECONDS", 0.5)
    made = Tokenizer(split("(?:a+)+(?=b)|(?:a|aa)+$"), "tokenizer.json")
    for _ in range(2):
        with pytest.raises(TokenizerError) as caught:
            made.encode("a" * 20_000 + "!")
        assert caught.value.key in ("worker.time", "tokenizer.library") and str(caught.value).startswith("tokenizer.json")
        assert made.encode("ab")


def test_published_expressions() -> None:
    """What transformers builds its tokenizers with is known here, so those run in this process."""
    llama = importlib.import_module("transformers.convert_slow_tokenizer").TikTokenConverter().pattern
    qwen = transformers.models.qwen3_5.tokenization_qwen3_5.PRETOKENIZE_REGEX
    for pattern in (llama, QWEN2, qwen):
        assert pattern in PUBLISHED
    for pattern in PUBLISHED:
        assert type(Tokenizer(split(pattern), "f")._plain) is LocalEncoder
    assert unpublished({"normalizer": {"normalizers": [{"pattern": {"Regex": "x"}}]}, "decoder": {"pattern": {"Regex": "y"}}}) == ["x"]


def test_growth_that_is_allowed() -> None:
    twice = Tokenizer(put("unigram", "normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 2}), "f")
    assert len(twice.encode("a" * 100)) <= 4 * 100 + 64


def test_a_text_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tokenizer(spec("bytes"), "f")
    monkeypatch.setattr(chat_encoder, "LONGEST_TEXT", 10)
    assert made.encode("x" * 10)
    with pytest.raises(TokenizerError, match="11 characters"):
        made.encode("x" * 11)


def test_a_frame_that_the_settings_do_not_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec("wordpiece")))
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": "[CLS]", "eos_token": "[MASK]"}')
    with pytest.warns(UserWarning, match=r"tokenizer\.json frames every text with \[SEP\]"):
        made = tokenizer.load_tokenizer(tmp_path)
    assert made and made.encode("the") == Tokenizer(spec("wordpiece"), "f").encode("the")
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": "[CLS]", "sep_token": "[SEP]"}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.load_tokenizer(tmp_path)


class Panic(BaseException):
    """As pyo3's PanicException: no Exception."""


def test_a_panic_is_an_error() -> None:
    """A published panic: a regular expression that gives up in the middle of a text."""
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    made = Tokenizer(put("bytes", "pre_tokenizer", split), "f")
    with pytest.raises(TokenizerError, match="retry-limit"):
        made.encode("a" * 40 + "!")
    assert made.encode("ab")
    trie = (4).to_bytes(4, "little") + b"\xff\xff\xff\xff" + b"x\0"
    with pytest.raises(TokenizerError) as caught:
        Tokenizer(put("unigram", "normalizer", charsmap(trie)), "f").encode("é")
    assert caught.value.key == "tokenizer.library"


@pytest.mark.parametrize(
    ("raised", "seen"), [(Panic("x"), TokenizerError), (MemoryError(), TokenizerError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_what_the_guard_lets_through(raised: BaseException, seen: type[BaseException]) -> None:
    with pytest.raises(seen), guarded("f"):
        raise raised


ODD: list[Any] = [None, True, 0, 1, -1, 3, 2**31, 2**63, 0.5, "", "x", "▁", "<s>", "[CLS]", [], {}, [[]], [1], ["a", "b"], "a b", 10**6]
ODD += [{"type": "ByteLevel"}, {"type": "Sequence"}, {"String": ""}, {"Regex": "(a+)+$"}, {"Regex": "("}, "A" * 5000]


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(value)[:30] if isinstance(value, dict) else range(min(len(value), 5)) if isinstance(value, list) else []
    return [place for key in keys for place in [(*way, key), *places(value[key], (*way, key))]]


def test_mutants_raise_nothing_foreign() -> None:
    """Fields changed at random: refused by us at load or at use, or a tokenizer that works."""
    random.seed(4)
    sound = {kind: spec(kind) for kind in KINDS}
    ways = {kind: places(made) for kind, made in sound.items()}
    works = 0
    for _ in range(2000):
        kind = random.choice(list(KINDS))
        changed = copy.deepcopy(sound[kind])
        *way, last = random.choice(ways[kind])
        value: Any = changed
        for step in way:
            value = value[step]
        if random.random() < 0.2:
            del value[last]
        else:
            value[last] = random.choice(ODD)
        try:
            made = Tokenizer(changed, "f")
            for text in ("Hello aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "日本 </s> <|im_end|>\U0010fffe"):
                ids = made.encode(text)
                made.decode(ids + made.encode(text, parse=True))
                made.pieces(ids)
            works += 1
        except TokenizerError:
            continue
    assert 20 < works < 1500
