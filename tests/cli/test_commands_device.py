"""The devices of each command, and models of which only the configuration is here: catalogue names, shapes without weights."""

import json
import math
import os
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid import catalog
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.errors import UseError
from pellucid.terminal import structure
from test_commands import Captured, judged, run, wrong
from tiny import swapped

FULL = bool(os.environ.get("PELLUCID_FULL"))
MODEL, PROMPT = "pellucid/capitals", "The capital of France is"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text(PROMPT)
    return tmp_path / "t.txt"


def lines(tmp_path: Path, text: Path) -> dict[str, list[str]]:
    """Return a short use of each command that takes a device."""
    return {
        "run": ["run", MODEL, PROMPT, "--max-new-tokens", "2"],
        "score": ["score", MODEL, str(text)],
        "trace": ["trace", MODEL, PROMPT, "--save", str(tmp_path / "s"), "--only", "logits"],
        "explain": ["explain", MODEL, PROMPT],
        "verify": ["verify", MODEL],
    }


def test_a_device_is_named(tmp_path: Path, text: Path, capsys: Captured) -> None:
    """The default is cpu; a missing device is one line of error before any weight is read; meta computes nothing."""
    for name, line in lines(tmp_path, text).items():
        assert "cuda:99" in wrong(capsys, *line, "--device", "cuda:99"), name
        assert run(capsys, *line, "--device", "cpu")[0] == 0, name
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        assert "abacus" in wrong(capsys, *line, "--device", "abacus"), name
        assert "--device" in run(capsys, name, "--help")[1]
        if name not in ("explain", "trace"):
            assert "--device meta" in wrong(capsys, *line, "--device", "meta")
    assert "--device meta" in wrong(capsys, "trace", MODEL, PROMPT, "--save", str(tmp_path / "other"), "--device", "meta")


def test_explain_tells_shapes_of_a_model_on_meta(capsys: Captured) -> None:
    """On meta the lines are those of a real run, in every kind of model, without values and without a next token."""
    for name in ("capitals", "capitals-t5", "capitals-bert", "capitals-deepseek", "capitals-prefix")[: 5 if FULL else 2]:
        command = ["explain", f"pellucid/{name}", PROMPT + (" ___" if name == "capitals-bert" else ""), "--dtype", "float32"]
        _, real = judged(capsys, *command)
        _, on_meta = judged(capsys, *command, "--device", "meta")
        of = ("path", "dims", "shape", "dtype", "made", "weights")
        if name != "capitals-t5":  # whose decoder is fed its start alone, in both
            drawn = [t for t in real["tensors"] if not t["path"].startswith("sample.")]
            assert [[t[f] for f in of] for t in on_meta["tensors"]] == [[t[f] for f in of] for t in drawn]
        assert all(t["min"] is t["mean"] is t["max"] is None for t in on_meta["tensors"])
        assert on_meta["next"] is None and on_meta["candidates"] == [] and on_meta["new"] == []
        out = run(capsys, *command, "--device", "meta")[1]
        assert "no token is next" in out and "NaN" not in out
    assert "one step" in wrong(capsys, "explain", MODEL, PROMPT, "--device", "meta", "--steps", "2")
    for more in (["--head", "0"], ["--cell", "logits", "0,0,0"], ["--check-finite"]):
        assert "--device meta" in wrong(capsys, "explain", MODEL, PROMPT, "--device", "meta", *more)


def test_a_catalogue_name_is_a_model_on_meta(capsys: Captured) -> None:
    """DeepSeek-V3's parameters are the count's own, and every field of its configuration is shown."""
    _, document = judged(capsys, "explain", "deepseek-v3", "1,2,3", "--ids", "--device", "meta")
    assert document["parameters"] == 671_026_404_352 and document["tokens"][0] == {"id": 1, "text": "", "bytes": ""}
    out = run(capsys, "show", "deepseek-v3")[1]
    flat = " ".join(out.split())
    for fact in ("experts 256", "chosen 8", "groups 8", "groups_chosen 4", "scaling Yarn(factor 40, original 4096", "DeepSeek-V3, DeepSeek",
                 "total 671B", "source: deepseek-ai/DeepSeek-V3"):  # fmt: skip
        assert fact in flat, fact
    assert "slow 1" in " ".join(run(capsys, "show", "deepseek-v3", "--all")[1].split())
    assert load("gpt2", device="meta").num_parameters() == 124_439_808
    assert load("deepseek-v3", device="meta", dtype="float32").dtype.itemsize == 4
    for line in (["run", "gpt2", PROMPT], ["explain", "gpt2", PROMPT]):
        assert "--device meta" in wrong(capsys, *line)
    assert "no tokenizer" in wrong(capsys, "explain", "gpt2", PROMPT, "--device", "meta")
    assert "published no configuration" in wrong(capsys, "show", "gpt-4")
    with pytest.raises(UseError, match="neither a folder"):
        load("gpt-17", device="meta")


def test_every_entry_is_shown(capsys: Captured) -> None:
    """Every disclosed entry shows its source and, with --all, every field by name; its parameters equal `count`'s.

    One entry in twelve is asked, with PELLUCID_FULL=1 all.
    """
    disclosed = [(name, entry) for name, entry in catalog.models().items() if "statements" not in entry]
    for name, entry in disclosed if FULL else disclosed[::12]:
        model = load(name, device="meta")
        assert model.num_parameters() == int(count(name)["parameters.total"]), name
        document = structure.document(model)["catalogue"]
        assert document["source"] == entry["source"] and document["notes"] == catalog.notes(entry)
        text = "\n".join(structure.settings(model, everything=True))
        for layer in {*model.config.layers}:
            for field in (f.name for f in fields(layer.ffn)):
                assert re.search(rf"\b{field} ", text), (name, field)
    _, document = judged(capsys, "show", MODEL)
    assert document["catalogue"] is None


def test_mutants() -> None:
    """Numbers of a tensor without values fail, and a catalogue whose notes are left out is seen."""
    model = load(MODEL, device="meta")
    from pellucid.documents.run_view import TensorView, explain

    line = explain(model, PROMPT).steps[0].tensors[0]
    assert all(map(math.isnan, line.range))
    with swapped(TensorView, "range", property(lambda self: (self.value.min().item(),) * 3)), pytest.raises(RuntimeError):
        line.range  # noqa: B018
    document: Any = json.loads(json.dumps(structure.document(load("gpt2", device="meta"))))
    with swapped(structure, "entry_of", lambda name: None):
        assert structure.document(load("gpt2", device="meta")) != document
    assert pellucid.load is load
