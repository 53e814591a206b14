"""Tokenizers: the library judges encoding and decoding, bytes judge pieces and streams, and hostile files are refused before the library sees them."""

import base64
import codecs
import copy
import json
import os
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pellucid.checkpoint import tokenizer as tokenizer_module
from pellucid.checkpoint.pieces import LETTERS, Piece, Stream
from pellucid.checkpoint.tokenizer import Tokenizer, load_tokenizer
from pellucid.errors import PellucidError, TokenizerError

SHARED = Path(os.environ.get("PELLUCID_SHARED", Path(__file__).parents[2] / "shared")) / "gpt2-tokenizer"
CORPUS = ["The capital of France is Paris, isn't it?", "naïve café 日本語 🎉 don't stop!", "the then there their hug pug pun bun hugs"] * 5
TEXTS = [
    "Hello, world!",
    " The capital  of France\nis",
    "naïve café — 日本語のテキスト 🎉👩‍👩‍👧",
    "don't isn't 1234567",
    "",
    "\0\t\x7f \u202e\ufffd",
]
Spec = dict[str, Any]


@cache
def _byte_level() -> str:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>", "<|im_end|>"], initial_alphabet=alphabet)
    )
    return made.to_str()


@cache
def _wordpiece() -> str:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=specials))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made.to_str()


@cache
def _unigram() -> str:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKC()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"))
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return made.to_str()


@cache
def _sentencepiece() -> str:
    """As Llama 2: spaces become marks, unknown characters fall back to bytes."""
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁THehlowrd,.", "he", "ll", "▁w", "or", "▁wor", "ld"]
    merges = [["h", "e"], ["l", "l"], ["▁", "w"], ["o", "r"], ["▁w", "or"], ["l", "d"]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    parts = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    undone = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    body = {"Sequence": {"id": "A", "type_id": 0}}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": id, "content": content, **flags} for id, content in enumerate(vocab[:3])],
            "normalizer": {"type": "Sequence", "normalizers": parts},
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [start, body],
                "pair": [start, body, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": {"type": "Sequence", "decoders": [*undone, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": {piece: id for id, piece in enumerate(vocab)},
                "merges": merges,
            },
        }
    )


@cache
def _wordlevel() -> str:
    made = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "<eos>": 1, "the": 2, "cat": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<eos>"])
    return made.to_str()


KINDS = {"bytes": _byte_level, "wordpiece": _wordpiece, "unigram": _unigram, "sentencepiece": _sentencepiece, "wordlevel": _wordlevel}


def spec(kind: str) -> Spec:
    made: Spec = json.loads(KINDS[kind]())
    return made


@cache
def ours(kind: str) -> Tokenizer:
    return Tokenizer(spec(kind), f"{kind}.json")


@cache
def byte_level() -> Tokenizer:
    """GPT-2's own, where it is at hand, else a small one of the same kind."""
    if (SHARED / "vocab.json").is_file():
        return Tokenizer.from_vocab(SHARED / "vocab.json", SHARED / "merges.txt")
    return ours("bytes")


def judge(kind: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(KINDS[kind]())


def test_gpt2() -> None:
    """Published ids; where the files are absent, our own trained vocabulary through the same door of vocab.json and merges.txt."""
    made = byte_level()
    ids = made.encode("The capital of France is")
    if made.size == 50257:
        assert ids == [464, 3139, 286, 4881, 318]
        assert made.special == {"bos": 50256, "eos": 50256}
    assert made.decode(ids) == "The capital of France is"
    assert [p.raw for p in made.pieces(ids)][-1].endswith(b"s") and b"".join(p.raw for p in made.pieces(ids)) == b"The capital of France is"


@pytest.mark.parametrize("kind", KINDS)
def test_encodes_and_decodes_as_the_library(kind: str) -> None:
    made, library = ours(kind), judge(kind)
    for text in TEXTS:
        for special in (True, False):
            ids = made.encode(text, special=special)
            assert ids == library.encode(text, add_special_tokens=special).ids == made.encode(text, special=special, parse=True)
            assert made.decode(ids) == library.decode(ids, skip_special_tokens=False)
            assert made.decode(ids, skip_special=True) == library.decode(ids)
    random.seed(0)
    pool = [id for id in range(made.size) if kind != "sentencepiece" or not made.piece(id).startswith("<0x")]
    for _ in range(1000):
        ids = random.choices(pool, k=random.randint(0, 8))
        for skip in (False, True):
            assert made.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.text())
def test_pieces_are_the_texts_bytes(text: str) -> None:
    made = byte_level()
    ids = made.encode(text, special=False)
    pieces = made.pieces(ids)
    assert b"".join(piece.raw for piece in pieces) == text.encode()
    assert [piece.id for piece in pieces] == ids and not any(piece.special for piece in pieces)
    assert made.decode(ids) == text


def test_pieces() -> None:
    assert ours("sentencepiece").pieces([1, 274, 3 + 0xE6]) == [
        Piece(1, "<s>", b"<s>", True),
        Piece(274, ours("sentencepiece").piece(274).replace("▁", " "), ours("sentencepiece").piece(274).replace("▁", " ").encode(), False),
        Piece(3 + 0xE6, "\ufffd", b"\xe6", False),
    ]
    word = next(id for id in range(ours("wordpiece").size) if ours("wordpiece").piece(id).startswith("##"))
    assert ours("wordpiece").pieces([word])[0].text.startswith("##")
    assert len(LETTERS) == 256 and set(LETTERS.values()) == set(range(256)) and set(LETTERS) == set(pre_tokenizers.ByteLevel.alphabet())


def byte_ids() -> list[int]:
    """The id of each of the 256 single bytes."""
    made = byte_level()
    ids = {piece.raw: piece.id for piece in made.pieces(made._pieces) if len(piece.raw) == 1}
    return [ids[bytes([byte])] for byte in range(256)]


def test_stream_is_the_whole() -> None:
    """Bytes in any order: no half characters, at most three bytes held back, and the join is what Python makes of the bytes."""
    made, singles = byte_level(), byte_ids()
    random.seed(2)
    good = "é日🎉a".encode()
    for _ in range(5000):
        raw = bytes(
            random.choice([random.randrange(256), random.choice(good), random.randrange(0x80, 0x100)]) for _ in range(random.randint(0, 12))
        )
        if random.random() < 0.5:
            raw = good[random.randrange(4) :] + raw + b"\xed\xa0\x80\xf4\x90\x80\x80\xc0\xaf"[: random.randint(0, 9)]
        ids = [singles[byte] for byte in raw]
        stream, told, text = made.stream(), 0, ""
        for count, id in enumerate(ids, 1):
            text += stream.feed(id)
            told = len(codecs.getincrementaldecoder("utf-8")("replace").decode(raw[:count]))
            assert len(text) == told
            assert any(raw[:count].decode("utf-8", "replace") in (text, text + "\ufffd") for _ in (0,)) or count - len(text) <= 3
        text += stream.end()
        assert text == made.decode(ids) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("kind", KINDS)
def test_stream_joins_to_decode(kind: str) -> None:
    made = ours(kind)
    random.seed(3)
    for text in TEXTS:
        for skip in (False, True):
            ids = made.encode(text) + random.choices(range(made.size), k=5)
            stream = made.stream(skip)
            assert "".join([*(stream.feed(id) for id in ids), stream.end()]) == made.decode(ids, skip)


def test_a_stream_without_memory_is_seen() -> None:
    """Mutant: a stream that decodes each id alone shows half characters."""
    made, ids = byte_level(), [byte_ids()[byte] for byte in "é🎉".encode()]

    def alone(id: int) -> str:
        return Stream(made.stream()._spoken, 0).over([id])

    assert "".join(map(alone, ids)) != made.decode(ids) == "é🎉"


CONTROLS = [("bytes", "<|im_end|>"), ("unigram", "</s>"), ("wordpiece", "[MASK]"), ("sentencepiece", "<s>"), ("wordlevel", "<eos>")]


@pytest.mark.parametrize(("kind", "control"), CONTROLS)
def test_text_is_never_a_control_token(kind: str, control: str) -> None:
    made, library = ours(kind), judge(kind)
    id = library.token_to_id(control)
    for text in (control, f"a{control}b", f"the {control} cat", control * 3, f"\U0010fffe{control}", f" {control}\n"):
        assert id not in made.encode(text, special=False)
        assert made.encode(text, parse=True) == library.encode(text).ids
    assert id in made.encode(f"the {control} cat", special=False, parse=True)


def test_without_the_fence_a_control_token_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the library's own switch does not stop a unigram model; what remains is refused."""
    monkeypatch.setattr(tokenizer_module, "_fenced", lambda spec, control: spec)
    made = Tokenizer(spec("unigram"), "f")
    with pytest.raises(TokenizerError, match="control token </s>"):
        made.encode("a </s> b")
    monkeypatch.setattr(made, "_control", frozenset())
    assert 1 in made.encode("a </s> b", special=False)


def test_chat_marks_count_as_control() -> None:
    """Some files mark the tokens that divide a chat as ordinary added tokens; plain added tokens stay text that is known."""
    changed = spec("bytes")
    size = len(changed["model"]["vocab"])
    for offset, content in enumerate(["<｜User｜>", "<think>"]):
        changed["added_tokens"].append({**changed["added_tokens"][0], "id": size + offset, "content": content, "special": False})
    made = Tokenizer(changed, "f")
    assert size not in made.encode("<｜User｜>hello") and made.encode("<｜User｜>", parse=True) == [size]
    assert made.encode("<think>") == [size + 1]


def put(kind: str, path: str, value: Any) -> Spec:
    """A sound tokenizer with one field set; "-" deletes it."""
    changed = spec(kind)
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    held: Any = changed
    for step in way:
        held = held[step]
    if value == "-":
        del held[last]
    elif isinstance(held, list) and last == len(held):
        held.append(value)
    else:
        held[last] = value
    return changed


def charsmap(raw: bytes) -> Spec:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
ADDED = {"id": 320, "content": "<new>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
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
    if path == "added_tokens" and value == {}:
        value = {"a": 1}
    with pytest.raises(TokenizerError) as caught:
        Tokenizer(put(kind, path, value), "tokenizer.json")
    assert caught.value.key == key and str(caught.value).startswith("tokenizer.json: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_an_added_token_that_follows_is_taken() -> None:
    made = Tokenizer(put("bytes", "added_tokens/2", {**ADDED, "id": ours("bytes").size}), "f")
    assert made.encode("a<new>", parse=True)[-1] == ours("bytes").size == made.size - 1
    for token in made._spec["added_tokens"]:
        assert made.encode(token["content"], parse=True) == [token["id"]] and made.decode([token["id"]]) == token["content"]


def test_truncation_padding_and_dropout_are_stripped() -> None:
    changed = spec("bytes")
    changed["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    changed["padding"] = {
        "strategy": {"Fixed": 2_000_000_000},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
    }
    changed["model"]["dropout"] = 0.9
    made = Tokenizer(changed, "f")
    assert all(made.encode(CORPUS[0]) == ours("bytes").encode(CORPUS[0]) for _ in range(5))


def test_old_files_without_a_type() -> None:
    """Published files of before 2021 leave the model's type out and write "" for none."""
    for kind in KINDS:
        changed = spec(kind)
        del changed["model"]["type"]
        if kind == "bytes":
            changed["model"] |= {"unk_token": "", "continuing_subword_prefix": "", "end_of_word_suffix": ""}
            changed["model"]["merges"] = [" ".join(pair) for pair in changed["model"]["merges"]]
        assert Tokenizer(changed, "f").encode("the hug") == ours(kind).encode("the hug")


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
    with pytest.raises(seen), tokenizer_module._guarded("f"):
        raise raised


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d"])
def test_half_characters_are_refused(text: str) -> None:
    with pytest.raises(TokenizerError, match="half of a surrogate pair"):
        byte_level().encode(text)


@pytest.mark.parametrize("id", [-1, 10**6, 2**63, True, 1.0, None])
def test_ids_out_of_range(id: Any) -> None:
    made = byte_level()
    for use in (made.decode, made.pieces):
        with pytest.raises(TokenizerError) as caught:
            use([5, id])
        assert str(id) in str(caught.value) and str(made.size) in str(caught.value)


def test_fits_the_embedding(tmp_path: Path) -> None:
    """A piece beyond the embedding is an error, an added token beyond it is dropped once with a warning."""
    made = ours("bytes")
    assert made.fit(made.size) is made and made.fit(made.size + 9) is made
    with pytest.raises(TokenizerError, match=f"id {made.size - 1} >= {made.size - 1} embedding rows"):
        made.fit(made.size - 1)
    wider = Tokenizer(put("bytes", "added_tokens/2", {**ADDED, "id": made.size}), "f", {"pad": "<new>", "eos": "<|im_end|>"})
    with pytest.warns(UserWarning, match="<new>"):
        fitted = wider.fit(made.size)
    assert fitted.size == made.size and fitted.special == {"eos": wider.special["eos"]}
    assert fitted.encode("<new>", parse=True) == made.encode("<new>")
    (tmp_path / "tokenizer.json").write_text(_byte_level())
    with pytest.raises(TokenizerError, match="embedding rows"):
        load_tokenizer(tmp_path, made.size - 1)


def test_folder(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(TokenizerError, match="tokenizer.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(_byte_level())
    made = load_tokenizer(tmp_path, 10**6)
    assert made and made.special == {} and made.encode("the hug") == ours("bytes").encode("the hug")
    settings = {
        "bos_token": None,
        "eos_token": {"content": "<|im_end|>", "special": True},
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    made = load_tokenizer(tmp_path)
    assert made and made.special == {"eos": 1, "pad": 0}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}))
    made = load_tokenizer(tmp_path)
    assert made and made.special == {"bos": 0, "eos": 1, "pad": 0}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]"}))
    with pytest.warns(UserWarning, match=r"cls_token is \[CLS\]"):
        made = load_tokenizer(tmp_path)
    assert made and made.special == {"bos": 0, "eos": 0}


def test_vocab_and_merges(tmp_path: Path) -> None:
    """GPT-2's two files give what its one file gives; another class of tokenizer is not guessed."""
    model = spec("bytes")["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    with pytest.raises(TokenizerError, match=r"vocab\.json"):
        load_tokenizer(tmp_path)
    lines = "\n".join(" ".join(pair) for pair in model["merges"])
    for end, ends in (("\n", "\n"), ("", "\r\n")):
        (tmp_path / "merges.txt").write_bytes(("#version: 0.2\n" + lines + end).replace("\n", ends).encode())
        made = load_tokenizer(tmp_path, len(model["vocab"]))
        assert made and made.special == {"bos": 0, "eos": 0}
        assert all(made.encode(text) == ours("bytes").encode(text) for text in TEXTS)
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\n\xc4\xa0 \xff\n")
    with pytest.raises(TokenizerError, match="byte"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(TokenizerError, match=r"merges\[0\]"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text(lines)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    with pytest.raises(TokenizerError, match="CLIPTokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b"", "json.empty"),
        (b"null", "json.object"),
        (b'{"version": "1.0"', "json.syntax"),
        (b'{"version": "1.0", "version": "1.0"}', "json.twice"),
        (b'{"model": {"vocab": {"a": 1e999}}}', "json.finite"),
        (b'{"model": {"vocab": {"\\ud800": 1}}}', "json.surrogate"),
        (b'{"a":' * 100_000, "json.depth"),
    ],
)
def test_files_that_are_no_json(raw: bytes, key: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(raw)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.key == key and "tokenizer.json" in str(caught.value)


def test_links_and_pipes(tmp_path: Path) -> None:
    away = tmp_path / "away"
    folder = tmp_path / "folder"
    folder.mkdir()
    away.write_text(_byte_level())
    (folder / "tokenizer.json").symlink_to(away)
    with pytest.raises(TokenizerError, match="outside"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(TokenizerError, match="regular"):
        load_tokenizer(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_written_and_read_again(kind: str, tmp_path: Path) -> None:
    ours(kind).write(tmp_path / "tokenizer.json")
    again = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert all(again.encode(text) == ours(kind).encode(text) for text in TEXTS)
    assert os.listdir(tmp_path) == ["tokenizer.json"]
    shutil.rmtree(tmp_path)
    with pytest.raises(TokenizerError, match="cannot be written"):
        ours(kind).write(tmp_path / "tokenizer.json")


ODD = [None, True, 0, 1, -1, 3, 2**31, 2**63, 0.5, "", "x", "▁", "<s>", "[CLS]", [], {}, [[]], [1], ["a", "b"], "a b", 10**6]
ODD += [{"type": "ByteLevel"}, {"type": "Sequence"}, {"String": ""}, {"Regex": "(a+)+$"}, {"Regex": "("}, "A" * 5000]


def places(held: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(held)[:30] if isinstance(held, dict) else range(min(len(held), 5)) if isinstance(held, list) else []
    return [found for key in keys for found in [(*way, key), *places(held[key], (*way, key))]]


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
        held: Any = changed
        for step in way:
            held = held[step]
        if random.random() < 0.2:
            del held[last]
        else:
            held[last] = random.choice(ODD)
        try:
            made = Tokenizer(changed, "f")
            for text in ("Hello aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "日本 </s> <|im_end|>\U0010fffe"):
                ids = made.encode(text)
                made.decode(ids + made.encode(text, parse=True))
                made.pieces(ids)
            works += 1
        except PellucidError as error:
            assert isinstance(error, TokenizerError)
    assert 20 < works < 1500
