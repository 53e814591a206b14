"""A folder of text becomes a model: prepared, trained, resumed to the same bits, measured on what was held out, and read by others."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from pellucid.commands import main
from pellucid.errors import TrainError
from pellucid.training import pipeline, run_recipe, text_card
from pellucid.training.objectives import IGNORED
from pellucid.training.recipe import read_recipe
from pellucid.training.text_objective import CausalText
from text_runs import recipe_of
from training import ROOT, silent


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_of(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    """The progress of `finished`."""
    return []


@pytest.fixture(scope="module")
def finished(recipe: Path, entries: list[dict[str, Any]]) -> Path:
    return run_recipe(recipe, recipe.parent / "out", False, 1, entries.append)


def test_the_model_is_read_by_transformers(finished: Path) -> None:
    """With equal logits, and an equal tokenizer."""
    own = pellucid.load(finished, dtype="float32")
    other = transformers.AutoModelForCausalLM.from_pretrained(finished, dtype=torch.float32)
    text = "Ann has a red ball and gives it to Ben."
    ids = own.tokenizer.encode(text)
    assert transformers.AutoTokenizer.from_pretrained(finished)(text).input_ids == ids
    with torch.no_grad():
        assert float((own(torch.tensor([ids])) - other(torch.tensor([ids])).logits).abs().max()) < 1e-5
    assert own.generate([ids], 3) and [own.tokenizer.piece(i) for i in own.stops] == ["<|endoftext|>"]


def test_the_card_is_measured(finished: Path, recipe: Path, entries: list[dict[str, Any]]) -> None:
    """Loss and bits per byte again, one held-out example at a time, from the folder and the text's own bytes."""
    read = read_recipe(recipe)
    objective = pipeline.prepare(read, finished.parent)
    assert isinstance(objective, CausalText)
    trained, out = objective.rows_of(read.train.seed)
    model, nats, count, size = pellucid.load(finished, dtype="float32"), 0.0, 0, 0
    for d in out:
        with torch.no_grad():
            logits = model(torch.tensor([d.target[:-1]]))[0]
        nats += float(torch.nn.functional.cross_entropy(logits, torch.tensor(d.target[1:]), reduction="sum"))
        count += len(d.target) - 1
        size += len(objective.tokenizer.decode(d.target[1:]).encode())
    last = entries[-1]
    assert abs(last["held_out"] - nats / count) < 1e-5 and abs(last["bits_per_byte"] - nats / math.log(2) / size) < 1e-5
    card = (finished / "README.md").read_text(encoding="utf-8")
    assert f"{last['held_out']:.3f} nats" in card and f"{last['bits_per_byte']:.3f} bits a byte" in card and f"{len(out)} examples" in card
    assert card.count("    ") >= 2 * len(text_card.score_of_texts(read, model.module, objective).samples) > 0
    assert f"{trained.figures()['idle']:.1%}" in card and entries[0] == trained.figures()


@pytest.mark.parametrize("pack", ["stream", "none"])
def test_other_packings(pack: str, tmp_path: Path) -> None:
    """Plain rows: those of a stream are equally long but the last, and no target of a document is left out."""
    path = recipe_of(tmp_path, data__pack=f'"{pack}"')
    model = run_recipe(path, tmp_path / "out", False, 1, silent)
    read = read_recipe(path)
    objective = pipeline.prepare(read, tmp_path / "out")
    assert isinstance(objective, CausalText) and pellucid.load(model).num_parameters()
    trained = objective.rows_of(1)[0]
    batch = objective.batch(trained[:5])
    assert batch.targets.shape[0] == 5 and int((batch.targets != IGNORED).sum()) == sum(len(d.target) - 1 for d in trained[:5])


@pytest.mark.parametrize("micro", ["2"])
def test_interrupted_run_goes_on(recipe: Path, micro: str, tmp_path: Path) -> None:
    """With micro-batches of whole rows; the run resumed has the bits of one that nothing interrupted."""
    path = recipe_of(tmp_path, train__micro=micro)
    plain = run_recipe(path, tmp_path / "plain", False, 1, silent)

    def interrupt(entry: dict[str, Any]) -> None:
        if entry.get("step") == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainError):
        run_recipe(path, tmp_path / "out", False, 1, interrupt)
    folder = run_recipe(path, tmp_path / "out", True, 1, silent)
    assert (folder / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    logs = [[re.sub(r', "seconds".*', "", line) for line in (f.parent / "log.jsonl").read_text().splitlines()] for f in (folder, plain)]
    assert logs[0] == logs[1]


def test_a_run_of_other_texts_is_refused(recipe: Path, finished: Path, tmp_path: Path) -> None:
    """Of a source that changed, of another length: the line names it, and nothing is trained."""
    shutil.copytree(recipe.parent, tmp_path, dirs_exist_ok=True)
    log = (tmp_path / "out" / "log.jsonl").read_bytes()
    path = recipe_of(tmp_path, data__length="16")
    with pytest.raises(TrainError, match=r"data\.length \(32 → 16\)"):
        run_recipe(path, tmp_path / "out", True, 1, silent)
    path = recipe_of(tmp_path)
    (tmp_path / "text" / "a.txt").write_text("Another text.")
    with pytest.raises(TrainError, match=r"a\.txt changed since the run began"):
        run_recipe(path, tmp_path / "out", True, 1, silent)
    assert (tmp_path / "out" / "log.jsonl").read_bytes() == log


def test_prepare_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shards without a run, and then the run without --resume; a corpus of facts has none."""
    path, out = recipe_of(tmp_path), tmp_path / "out"
    given = ["train", str(path), "--out", str(out), "--prepare"]
    assert main([*given, "--json"]) == 0 and json.loads(capsys.readouterr().out)["data"] == str(out / "data")
    assert sorted(os.listdir(out)) == ["data", "lock"] and (out / "data" / "index.json").is_file()
    (out / "data" / "00000.safetensors").write_bytes(b"")
    assert main(["train", str(path), "--out", str(out)]) == 2 and "--prepare" in capsys.readouterr().err
    assert main(given) == 0 and main(["train", str(path), "--out", str(out)]) == 0
    assert main(["train", str(ROOT / "recipes" / "capitals.toml"), "--out", str(tmp_path / "other"), "--prepare"]) == 2
    assert "data.files" in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / "other").exists()


def test_rows_longer_than_the_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"data\.length is 97; the model has 96 positions"):
        run_recipe(recipe_of(tmp_path, data__length="97"), tmp_path / "out", False, 1, silent)


LLAMA = {
    "model_type": '"llama"', "n_embd": None, "n_layer": None, "n_head": None, "n_positions": None, "model__hidden_size": "16",
    "model__num_hidden_layers": "1", "model__num_attention_heads": "2", "model__intermediate_size": "16",
    "model__max_position_embeddings": "31",
}  # fmt: skip


@pytest.mark.parametrize(("length", "warned"), [("32", True), ("31", False)])
def test_rows_longer_than_the_config_says_are_warned_of(length: str, warned: bool, tmp_path: Path) -> None:
    """A model that turns its keys can learn them, and is told of: readers of its folder may cut at the number in it."""
    entries: list[dict[str, Any]] = []
    run_recipe(recipe_of(tmp_path, data__length=length, steps="1", **LLAMA), tmp_path / "out", False, 1, entries.append)
    assert any("data.length is 32, more than the 31 positions" in str(entry.get("warning")) for entry in entries) == warned


def test_what_is_held_out_is_read_in_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So an evaluation takes no more memory than a step; the loss is that of a batch at once."""
    most, losses = list[int](), list[float]()
    for micro in (None, "1"):
        entries: list[dict[str, Any]] = []
        rows = list[int]()

        class Seen(pipeline.HeldOut):
            def entry(self, model: torch.nn.Module) -> dict[str, float]:
                rows.extend(len(part) for part in self.parts)
                return super().entry(model)

        monkeypatch.setattr(pipeline, "HeldOut", Seen)
        given = {"steps": "1", "data__held_out": "0.5", "train__dtype": '"float64"', "train__micro": micro}
        given["log_every"] = "1\n[eval]\nevery = 1"
        run_recipe(recipe_of(tmp_path, **given), tmp_path / f"out{micro}", False, 1, entries.append)
        most.append(max(rows))
        losses += [entry["held_out"] for entry in entries if "held_out" in entry][:1]
    assert most == [8, 1] and abs(losses[0] - losses[1]) < 1e-10


def test_the_recipe_of_stories(tmp_path: Path) -> None:
    """The texts that ship are those that their script writes, and the recipe makes a model of them; in full in a minute."""
    folder = ROOT / "recipes" / "stories"
    shipped = {file.name: file.read_bytes() for file in folder.iterdir()}
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "recipes" / "stories").mkdir(parents=True)
    subprocess.run([sys.executable, str(tmp_path / "examples" / "stories.py")], check=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "recipes" / "stories").iterdir()} == shipped
    text = (ROOT / "recipes" / "stories.toml").read_text()
    path = tmp_path / "recipes" / "stories.toml"
    path.write_text(re.sub(r"(?m)^(steps|every) = .*$", r"\1 = 4", text))
    entries: list[dict[str, Any]] = []
    model = pellucid.load(run_recipe(path, tmp_path / "run", False, 1, entries.append))
    assert model.generate("One sunny day,", max_new_tokens=2) and entries[0]["idle"] < 0.1 and entries[-1]["bits_per_byte"] < 8
