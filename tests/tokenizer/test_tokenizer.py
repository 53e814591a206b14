"""Tokenizers at work: the library judges encoding and decoding, bytes judge pieces and streams, and text is never a control token."""

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
from tokenizers import pre_tokenizers

from pellucid.errors import TokenizerError
from pellucid.tokenizer import tokenizer as tokenizer_module
from pellucid.tokenizer.pieces import LETTERS, Piece, Stream
from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer
from vocabularies import ADDED, CORPUS, KINDS, TEXTS, ours, put, spec

SHARED = Path(os.environ.get("PELLUCID_SHARED", Path(__file__).parents[3] / "shared")) / "gpt2-tokenizer"


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


@cache
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
        stream, text = made.stream(), ""
        for count, id in enumerate(ids, 1):
            text += stream.feed(id)
            assert text in [raw[: max(count - waiting, 0)].decode("utf-8", "replace") for waiting in range(4)]
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_from_its_prompt(kind: str) -> None:
    """A prompt's text and the one after it are those of all their ids, wherever they part, but within a character."""
    made = ours(kind)
    for text in TEXTS:
        ids = made.encode(text)
        for k in range(1, len(ids)):
            if "\ufffd" not in (prompt := made.decode(ids[:k])) and not made.pieces(ids[k - 1 : k])[0].special:
                assert prompt + made.after(ids[:k]).over(ids[k:]) == made.decode(ids), (text, k)
    assert made.after([]).over(ids) == made.decode(ids)


def test_a_text_that_begins_behind_its_prompt_is_seen() -> None:
    """Mutant: a text of its own loses the space before its first word. Behind a special token it does begin."""
    made = ours("sentencepiece")
    ids = made.encode("the cap the")
    assert any(made.decode(ids[:k]) + made.decode(ids[k:]) != made.decode(ids) for k in range(2, len(ids)))
    special = next(p.id for p in made.pieces(range(made.size)) if p.special)
    assert made.after([special]).over(ids) == made.decode(ids)


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
    monkeypatch.setattr(tokenizer_module, "fenced", lambda spec, control: spec)
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


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
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
    (tmp_path / "tokenizer.json").write_text(KINDS["bytes"]())
    with pytest.raises(TokenizerError, match="embedding rows"):
        load_tokenizer(tmp_path, made.size - 1)


def test_folder(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(KINDS["bytes"]())
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
    with pytest.warns(UserWarning, match=r"tokenizer_config\.json says <\|im_end\|>"):
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
    away.write_text(KINDS["bytes"]())
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
