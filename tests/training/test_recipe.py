"""Recipes: every field is checked by name, and one that is sound makes a model that loads, interrupted or not."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.api.model import load
from pellucid.errors import PellucidError, TrainError
from pellucid.training import pipeline, run_recipe
from pellucid.training import quiz as quizzes
from pellucid.training.corpus import CORPORA, corpora
from pellucid.training.invented import Invented
from pellucid.training.recipe import read_recipe
from pellucid.training.texts import Texts
from training import ROOT, corpus_of, silent

GOOD = {
    "name": '"mini"', "[model]": "", "model_type": '"gpt2"', "n_embd": "16", "n_layer": "1", "n_head": "2", "n_positions": "96",
    "[tokenizer]": "", "size": "400", "[data]": "", "folder": '"corpus"', "[train]": "", "seed": "1", "steps": "6", "batch": "8",
    "learning_rate": "1e-2", "warmup": "2", "save_every": "2", "log_every": "1",
}  # fmt: skip


def written(path: Path, **changed: str | None) -> Path:
    """A recipe with some fields changed, None to leave one out; `train__x` adds x to [train]."""
    lines = []
    for name, value in {**GOOD, **{k: v for k, v in changed.items() if k in GOOD}}.items():
        lines += [] if value is None else [name if name.startswith("[") else f"{name} = {value}"]
        lines += [
            f"{k.split('__')[1]} = {v}" for k, v in changed.items() if name == f"[{k.split('__')[0]}]" and "__" in k and v is not None
        ]
    path.write_text("\n".join([f"{k} = {v}" for k, v in changed.items() if k not in GOOD and "__" not in k] + lines) + "\n")
    return path


RECIPES: list[tuple[str, str, dict[str, str | None]]] = [
    ("recipe.unknown", "extra", {"extra": "1"}),
    ("recipe.near", "train.stepz", {"train__stepz": "1"}),
    ("recipe.near", "tokenizer.siez", {"tokenizer__siez": "1"}),
    ("recipe.unknown", "data.file", {"data__file": '"x"'}),
    ("recipe.missing", "name is missing; allowed: str", {"name": None}),
    ("recipe.field", "name", {"name": "3"}),
    ("recipe.field", "name", {"name": '"../../elsewhere"'}),
    ("recipe.field", "name", {"name": '""'}),
    ("recipe.field", "objective", {"objective": '"answers"'}),
    ("recipe.field", "objective", {"objective": "[1]"}),
    ("recipe.missing", "data.folder", {"folder": None}),
    ("recipe.field", "data.folder", {"folder": "3"}),
    ("recipe.field", "data.folder", {"folder": f'"{"a" * 1000}"'}),
    ("recipe.field", "pellucid/capitals", {"folder": '"pellucid/capitols"'}),
    ("recipe.field", "tokenizer.size", {"size": "256"}),
    ("recipe.field", "tokenizer.size", {"size": "300.0"}),
    ("recipe.one", "train.steps, train.tokens, train.epochs", {"steps": None}),
    ("recipe.one", "train.steps, train.tokens, train.epochs", {"train__epochs": "2"}),
    ("recipe.one", "train.steps, train.tokens, train.epochs", {"steps": None, "train__epochs": "2\ntokens = 3"}),
    ("recipe.field", "train.epochs", {"steps": None, "train__epochs": "0"}),
    ("recipe.field", "train.tokens", {"steps": None, "train__tokens": '"many"'}),
    ("recipe.near", "train.epochs", {"train__epoch": "2"}),
    ("recipe.missing", "train.skips is missing; allowed: int > 0", {"train__on_nan": '"skip"'}),
    ("recipe.field", "train.skips", {"train__on_nan": '"skip"\nskips = -1'}),
    ("recipe.field", "train.on_nan", {"train__skips": "2"}),
    ("recipe.field", "train.on_nan", {"train__on_nan": '"go"'}),
    ("recipe.field", "train.recompute", {"train__recompute": "1"}),
    ("recipe.field", "train.steps", {"steps": "0"}),
    ("recipe.field", "train.steps", {"steps": "1.5"}),
    ("recipe.field", "train.steps", {"steps": "true"}),
    ("recipe.field", "train.seed", {"seed": "-1"}),
    ("recipe.missing", "train.seed is missing; allowed: int", {"seed": None}),
    ("recipe.field", "train.learning_rate", {"learning_rate": "nan"}),
    ("recipe.field", "train.learning_rate", {"learning_rate": "inf"}),
    ("recipe.field", "train.learning_rate is 0; allowed: number > 0", {"learning_rate": "0"}),
    ("recipe.field", "train.learning_rate is 1e+30; allowed: number > 0, < 2**63", {"learning_rate": "1e30"}),
    ("recipe.field", "train.learning_rate", {"learning_rate": '"fast"'}),
    ("recipe.field", "train.beta2", {"train__beta2": "1.0"}),
    ("recipe.field", "train.clip", {"train__clip": "0"}),
    ("recipe.field", "train.smoothing", {"train__smoothing": "1.0"}),
    ("recipe.field", "train.batch", {"batch": "9223372036854775808"}),
    ("recipe.field", "train.micro", {"train__micro": "3"}),
    ("recipe.field", "train.schedule", {"train__schedule": '"step"'}),
    ("recipe.field", "train.dtype", {"train__dtype": '"float16"'}),
    ("recipe.near", "train.dtyp", {"train__dtyp": '"bfloat16"'}),
    ("recipe.field", "train.schedule", {"train__cooldown": "0.5"}),
    ("recipe.field", "train.cooldown", {"train__schedule": '"wsd"\ncooldown = 2'}),
    ("recipe.missing", "model.from", {"objective": '"chat"'}),
    ("recipe.missing", "model.from", {"size": "400\n[adapter]\nrank = 2"}),
    ("recipe.field", "train.micro", {"train__micro": "0"}),
    ("recipe.field", "eval.every", {"log_every": "1\n[eval]\nevery = 0"}),
    ("recipe.near", "eval.evry", {"log_every": "1\n[eval]\nevry = 1"}),
    ("recipe.field", "eval", {"eval": "3"}),
    ("recipe.toml", "line", {"seed": "= 3"}),
    ("recipe.toml", "line", {"folder": '"corpus'}),
]


@pytest.mark.parametrize(("key", "named", "changed"), RECIPES)
def test_recipe_errors(key: str, named: str, changed: dict[str, str | None], tmp_path: Path) -> None:
    """One line that names the file, the field and what is allowed."""
    assert read_recipe(written(tmp_path / "good.toml")).train.steps == 6
    with pytest.raises(TrainError) as caught:
        read_recipe(written(tmp_path / "r.toml", **changed))
    assert caught.value.key == key and named in str(caught.value) and "r.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_recipe_files(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8, too deep, too large."""
    for name, content, key in (
        ("none.toml", None, "file.missing"),
        ("bytes.toml", b'name = "\xff"', "recipe.toml"),
        ("deep.toml", b"a = " + b"[" * 100_000, "recipe.toml"),
        ("large.toml", b"#" * 1_000_001, "file.large"),
        ("empty.toml", b"", "recipe.missing"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(TrainError) as caught:
            read_recipe(tmp_path / name)
        assert caught.value.key == key
    with pytest.raises(TrainError):
        read_recipe(tmp_path)


RECIPES_THAT_SHIP = [path for path in sorted((ROOT / "recipes").glob("*.toml")) if not isinstance(read_recipe(path).data, Texts)]


@pytest.mark.parametrize("path", RECIPES_THAT_SHIP, ids=lambda p: p.stem)
def test_recipes_that_ship_are_read(path: Path) -> None:
    recipe = read_recipe(path)
    data = recipe.data.folder if isinstance(recipe.data, Invented) else recipe.data
    assert recipe.name == path.stem and data in corpora().values() and data.is_relative_to(Path(pellucid.__file__).parent)
    assert (data / ("words.json" if path.stem == "reader" else "facts.json")).is_file()


def test_a_folder_beside_a_recipe_is_no_corpus_that_ships(tmp_path: Path) -> None:
    """Only the full name is one of the package's; a folder of its last part is the recipe's own."""
    given = {"capitals": tmp_path / "capitals", "pellucid/capitals": CORPORA / "capitals", "./pellucid/x": tmp_path / "pellucid" / "x"}
    for folder, wanted in given.items():
        assert read_recipe(written(tmp_path / "r.toml", folder=f'"{folder}"')).data == wanted


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe over five countries of the corpus that ships."""
    root = tmp_path_factory.mktemp("mini")
    corpus_of(root / "corpus", "Afghanistan", "Albania", "Algeria", "Andorra", "Angola")
    return written(root / "mini.toml")


@pytest.mark.parametrize("path", RECIPES_THAT_SHIP, ids=lambda p: p.stem)
@pytest.mark.quick(11)
def test_every_recipe_that_ships_makes_a_model(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own form, over two countries and for two steps: a folder that loads, of the architecture that its family names.

    Its answers end after two tokens.
    """
    continued = quizzes.continued
    monkeypatch.setattr(quizzes, "continued", lambda logits, prompts, end, most, batch: continued(logits, prompts, end, 2, batch))
    changed = {"steps": "2", "size": "700", "batch": "4", "texts": "20", "copies": "20", "tokens": '[" is"]'}
    if path.stem != "reader":
        changed["folder"] = f'"{corpus_of(tmp_path / "corpus", "France", "Spain")}"'
    recipe = tmp_path / path.name
    recipe.write_text(re.sub(r"(?m)^(\w+) = .*$", lambda m: f"{m[1]} = {changed[m[1]]}" if m[1] in changed else m[0], path.read_text()))
    model = load(run_recipe(recipe, tmp_path / "run", False, 1, silent))
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["architectures"] == [model.family.architecture] and model.precision.stored == torch.bfloat16
    assert model.tokenizer.special and model.config.stops == tuple(config[k] for k in ("eos_token_id",) if k in config)
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert f"{model.num_parameters():,}" in card and path.name in card


@pytest.fixture(scope="module")
def finished(mini: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recipe's finished model."""
    return run_recipe(mini, tmp_path_factory.mktemp("run") / "out", False, 1, silent)


def test_a_recipe_makes_a_model(finished: Path) -> None:
    """A folder that loads, in bfloat16, with its tokenizer and a card of measured numbers."""
    model = load(finished)
    assert model.precision.stored == torch.bfloat16 and [model.tokenizer.piece(i) for i in model.stops] == ["<|endoftext|>"]
    ids = model.tokenizer.encode("The capital of France is")
    assert len(model.generate([ids], 3)[0]) in (1, 2, 3)
    card = (finished / "README.md").read_text(encoding="utf-8")
    assert f"{model.num_parameters():,}" in card and card.count("|---|") == 2 and "mini.toml" in card


def test_interrupted_recipe_goes_on(mini: Path, finished: Path, tmp_path: Path) -> None:
    """SIGINT and SIGTERM save at the border of a step; the run resumed later has the same weights, to the bit."""
    signals, steps = [signal.SIGINT, signal.SIGTERM], list[int]()
    before = {s: signal.getsignal(s) for s in signals}

    def interrupt(entry: dict[str, Any]) -> None:
        if "step" in entry:
            steps.append(entry["step"])
            if entry["step"] in (1, 3) and signals:
                os.kill(os.getpid(), signals.pop())

    for resume, at in ((False, 1), (True, 3)):
        with pytest.raises(TrainError) as caught:
            run_recipe(mini, tmp_path, resume, 1, interrupt)
        assert caught.value.key == "train.stopped" and f"{at:09d}" in os.listdir(tmp_path / "saves")
        assert {s: signal.getsignal(s) for s in before} == before
    folder = run_recipe(mini, tmp_path, True, 1, interrupt)
    assert steps == [1, 2, 3, 4, 5, 6]
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    with pytest.raises(TrainError) as caught:
        run_recipe(mini, tmp_path, False, 1, silent)
    assert caught.value.key == "train.exists"


def test_one_run_a_folder(mini: Path, tmp_path: Path) -> None:
    with pipeline.alone(tmp_path), pytest.raises(TrainError) as caught:
        run_recipe(mini, tmp_path, False, 1, silent)
    assert caught.value.key == "train.locked"
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TrainError) as caught:
            run_recipe(mini, place, False, 1, silent)
        assert caught.value.key == "train.folder"


@pytest.mark.parametrize("changed", [{"n_positions": "8"}, {"model_type": '"t5"'}, {"n_head": "3"}, {"n_embd": None}])
def test_models_that_cannot_be_trained(changed: dict[str, str | None], mini: Path, tmp_path: Path) -> None:
    """One line, and nothing but the lock is left in the run's folder."""
    shutil.copytree(mini.parent / "corpus", tmp_path / "corpus")
    recipe = written(tmp_path / "r.toml", **changed)
    if changed == {"n_embd": None}:
        recipe.write_text(recipe.read_text().replace("[model]", "[model]\nrope_theta = 3"))
    with pytest.raises(PellucidError) as caught:
        run_recipe(recipe, tmp_path / "out", False, 1, silent)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path / "out") == ["lock"]
