"""A GGUF file stands wherever a model's name does, and `pellucid convert` writes one and back; wrong words are told in one line."""

from pathlib import Path

import pytest
import torch

from pellucid.api.convert import convert
from pellucid.api.model import load
from pellucid.checkpoint.gguf.gguf_folder import folder_of
from pellucid.commands import main
from test_commands import Captured, judged, run, wrong

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "capitals.gguf"
    assert main(["convert", "pellucid/capitals-llama", "--quant", "q8_0", "--out", str(path), "-q"]) == 0
    return path


def test_every_command_takes_the_file(file: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "text.txt").write_text("The capital of Japan is Tokyo.", encoding="utf-8")
    assert run(capsys, "run", file, PROMPT)[1] == " Paris.\n" == run(capsys, "run", "pellucid/capitals-llama", PROMPT)[1]
    assert "Paris" in run(capsys, "explain", file, PROMPT)[1]
    assert judged(capsys, "tokenize", file, PROMPT)[1]["ids"] == judged(capsys, "tokenize", "pellucid/capitals-llama", PROMPT)[1]["ids"]
    assert "int8" in run(capsys, "count", file)[1] and "1,066,112" in run(capsys, "show", file)[1]
    assert judged(capsys, "score", file, tmp_path / "text.txt")[0] == 0
    assert "--against" in wrong(capsys, "verify", file)


def test_there_and_back(file: Path, tmp_path: Path, capsys: Captured) -> None:
    """The numbers of a folder made of a file are the file's; and its tokenizer works."""
    _, document = judged(capsys, "convert", file, "--to", "safetensors", "--out", tmp_path / "back")
    back, model = load(tmp_path / "back"), load(file)
    assert document["path"] == str(tmp_path / "back") and document["tensors"] == len(back.tensors())
    for name, weight in back.module.named_parameters():
        assert torch.equal(weight, model.module.get_parameter(name) * 1.0), name
    assert run(capsys, "run", tmp_path / "back", PROMPT)[1] == " Paris.\n"


def test_halves_stay_halves_where_nothing_is_lost(tmp_path: Path) -> None:
    """llama.cpp writes norms as F32; the folder keeps bf16 if it has each of their numbers, and takes float32 for one that it has not."""
    convert("pellucid/capitals-llama", tmp_path / "a.gguf", quant="bf16")
    stored = {e.dtype for e in folder_of(tmp_path / "a.gguf").entries.values()}
    convert(tmp_path / "a.gguf", tmp_path / "back", to="safetensors")
    back, model = load(tmp_path / "back"), load("pellucid/capitals-llama")
    assert stored == {torch.float32, torch.bfloat16} and {e.dtype for e in folder_of(tmp_path / "back").entries.values()} == {
        torch.bfloat16
    }
    for name, weight in model.tensors().items():
        assert torch.equal(weight, back.tensors()[name]), name

    finer = load("pellucid/capitals-llama", dtype="float32")
    finer.module.layers[0].attn_norm.weight.data[0] += 1e-4  # type: ignore[union-attr]
    finer.save(tmp_path / "finer")
    convert(tmp_path / "finer", tmp_path / "finer.gguf", quant="bf16")
    convert(tmp_path / "finer.gguf", tmp_path / "kept", to="safetensors")
    assert {e.dtype for e in folder_of(tmp_path / "kept").entries.values()} == {torch.float32}


def test_wrong_words(file: Path, tmp_path: Path, capsys: Captured) -> None:
    assert "--out" in wrong(capsys, "convert", file)
    assert "exists already" in wrong(capsys, "convert", file, "--out", file)
    assert "gguf, safetensors" in wrong(capsys, "convert", file, "--to", "pickle", "--out", tmp_path / "a")
    assert "f32, f16, bf16" in wrong(capsys, "convert", file, "--to", "safetensors", "--quant", "q8_0", "--out", tmp_path / "a")
    assert "no key for this: prefix = True" in wrong(capsys, "convert", "pellucid/capitals-prefix", "--out", tmp_path / "a.gguf")
    assert "no key for this: layers.0.attn.window = 5" in wrong(capsys, "convert", "pellucid/reader", "--out", tmp_path / "a.gguf")
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:5000])
    assert "cut.gguf" in wrong(capsys, "run", tmp_path / "cut.gguf", PROMPT)
