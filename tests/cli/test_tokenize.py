"""`pellucid tokenize` gives the library's ids and texts, from a tokenizer alone, without reading a weight."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import tokenizers

from pellucid.api.model import SPECIMENS
from pellucid.commands import main
from pellucid.tokenizer.tokenizer import Tokenizer
from test_commands import Captured, judged, run, wrong
from test_hub import hub
from tiny import swapped
from vocabularies import KINDS

TEXTS = ("The capital of France is", "Österreich, 中文 <|endoftext|>", " two  spaces\n", "é")
__all__ = ["hub"]


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """Return a folder with a tokenizer and nothing else."""
    folder = tmp_path / "alone"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPECIMENS / "capitals" / name, folder)
    return folder


def test_ids_pieces_and_bytes(alone: Path, capsys: Captured) -> None:
    """A name, a folder and a file give the library's ids and pieces, and their bytes are the text's."""
    library = tokenizers.Tokenizer.from_file(str(alone / "tokenizer.json"))
    library.encode_special_tokens = True
    for text in TEXTS:
        for model in ("pellucid/capitals", alone, alone / "tokenizer.json"):
            _, document = judged(capsys, "tokenize", model, text)
            assert document["ids"] == [t["id"] for t in document["tokens"]] == library.encode(text).ids
            assert (
                bytes.fromhex("".join(t["bytes"] for t in document["tokens"])) == text.encode()
                and document["text"] == document["prompt"] == text
            )
            assert [t["piece"] for t in document["tokens"]] == library.encode(text).tokens
            out = run(capsys, "tokenize", model, text)[1]
            assert all(str(i) in out for i in document["ids"]) and f"{len(text.encode())} bytes" in out
    with swapped(Tokenizer, "encode", lambda self, text, special=True: [3]):
        assert judged(capsys, "tokenize", alone, TEXTS[0])[1]["text"] != TEXTS[0]


def test_ids_are_decoded(capsys: Captured) -> None:
    _, document = judged(capsys, "tokenize", "pellucid/capitals", "--ids", "337, 308 0")
    assert (document["prompt"], document["ids"], document["text"]) == (None, [337, 308, 0], "The capital<|endoftext|>")
    assert [t["special"] for t in document["tokens"]] == [False, False, True]
    assert judged(capsys, "tokenize", "pellucid/capitals", "--ids", "337 308 0", "--no-special")[1]["text"] == "The capital"
    assert "decoded: 'The capital'" in run(capsys, "tokenize", "pellucid/capitals", "--ids", "337 308 0", "--no-special")[1]


def test_special_tokens_are_added_or_not(tmp_path: Path, capsys: Captured) -> None:
    _, document = judged(capsys, "tokenize", "pellucid/capitals-bert", "The capital")
    _, bare = judged(capsys, "tokenize", "pellucid/capitals-bert", "The capital", "--no-special")
    assert [t["special"] for t in document["tokens"]] == [True, False, False, True] and bare["ids"] == document["ids"][1:-1]
    assert (document["text"], bare["text"]) == ("[CLS]The capital[SEP]", "The capital")
    assert "--special, --no-special" in run(capsys, "tokenize", "--help")[1]
    for kind in KINDS:
        (tmp_path / "tokenizer.json").write_text(KINDS[kind]())
        library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for special in (True, False):
            _, document = judged(capsys, "tokenize", tmp_path, "the hug", "--special" if special else "--no-special")
            assert document["ids"] == library.encode("the hug", add_special_tokens=special).ids


def test_a_padded_table(alone: Path, capsys: Captured) -> None:
    """Ids of rows that only config.json counts are accepted, and write nothing."""
    size = Tokenizer.from_file(alone / "tokenizer.json").size
    assert str(size) in wrong(capsys, "tokenize", alone, "--ids", f"5 {size}")
    (alone / "config.json").write_text(json.dumps({"model_type": "another", "vocab_size": size + 8}))
    _, document = judged(capsys, "tokenize", alone, "--ids", f"5 {size}")
    assert document["tokens"][1]["bytes"] == "" and "no entry" in run(capsys, "tokenize", alone, "--ids", f"5 {size}")[1]
    assert str(size + 8) in wrong(capsys, "tokenize", alone, "--ids", f"{size + 8}")


def test_what_cannot_be_tokenized(alone: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, reason in (
        ([tmp_path, "x"], "no tokenizer files"),
        (["gpt2", "x"], "catalogue"),
        (["nothing", "x"], "neither a folder"),
        (["pellucid/nothing", "x"], "pellucid/capitals"),
        ([alone, "--ids", "one"], "whole numbers"),
        ([alone, "--ids", "99999999"], "99999999"),
        ([alone / "tokenizer_config.json", "x"], "tokenizer_config.json"),
    ):
        assert reason in wrong(capsys, "tokenize", *given), given
    monkeypatch.setattr(sys, "stdin", io.StringIO("The capital\n"))
    assert main(["tokenize", str(alone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "The capital"


def test_of_a_hub_id_the_small_files_are_fetched(hub: object, capsys: Captured, tmp_path: Path) -> None:
    _, document = judged(capsys, "tokenize", "owner/capitals", TEXTS[0])
    assert document["ids"] == judged(capsys, "tokenize", "pellucid/capitals", TEXTS[0])[1]["ids"]
    fetched = {p.name for p in tmp_path.glob("hub/models--*/snapshots/*/*")}
    assert "tokenizer.json" in fetched and not any(name.endswith((".safetensors", ".bin", ".py")) for name in fetched)
