"""Fields given beside a recipe: the run has them, keeps them, and says what is wrong with them."""

import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

import pellucid
from pellucid.commands import main
from pellucid.training import recipe_changes
from pellucid.training.recipe import read_recipe
from pellucid.training.recipe_changes import changed, toml
from text_runs import recipe_of
from tiny import swapped
from training import ROOT


def test_every_recipe_is_written_as_it_was_read() -> None:
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        assert tomllib.loads(toml(tables)) == tables
    odd = {"a": 'x"\\\n\u7f16\x7f', "t": {"b": [1.5e-9, True, -3, ["é"], {"c d": 1e300}], "": ""}}
    assert tomllib.loads(toml(odd)) == odd


def test_a_changed_recipe(tmp_path: Path) -> None:
    path = recipe_of(tmp_path)
    before = path.read_bytes()
    with changed(path, ["train.steps=3", "eval.every = 2", "name=other one".replace(" ", "-"), 'data.files=["b.jsonl"]']) as made:
        recipe = read_recipe(made, path.parent)
    assert (recipe.train.steps, recipe.name, recipe.data.files) == (3, "other-one", ("b.jsonl",))  # type: ignore[union-attr]
    assert recipe.evaluate is not None and recipe.evaluate.every == 2 and not made.exists() and path.read_bytes() == before
    with changed(path, []) as same:
        assert same == path


def test_the_run_keeps_what_was_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its copy of the recipe has the fields, so its steps are taken again by them."""
    path, out = recipe_of(tmp_path), tmp_path / "run"
    assert main(["train", str(path), "--out", str(out), "--set", "train.steps=3", "--set", "train.micro=4"]) == 0
    run = pellucid.Run(out)
    assert len(run.log) == 3 and run.recipe.train.micro == 4 and run.replay(2).number == 2
    capsys.readouterr()
    for given, line_part in (
        ("train.stepz=3", "near: train.steps"),
        ("train.steps", "give FIELD=VALUE"),
        ("=3", "FIELD=VALUE"),
        ("name.x=3", "FIELD=VALUE"),
    ):
        assert main(["train", str(path), "--out", str(tmp_path / "no"), "--set", given]) == 2
        line = capsys.readouterr().err
        assert line_part in line and line.count("\n") == 1 and not (tmp_path / "no").exists()


def test_an_error_names_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not the file with the changes, which is gone; of the recipe's fields and of the model's."""
    path = recipe_of(tmp_path)
    for given, named in (("train.stepz=3", f"pellucid: {path}: train.stepz"), ('model.model_type="lama"', f"pellucid: {path}: model_type")):
        mutant = swapped(recipe_changes, "rename", lambda *_: None)
        for without in (nullcontext(), mutant):
            with without:
                assert main(["train", str(path), "--out", str(tmp_path / "no"), "--set", given]) == 2
            assert capsys.readouterr().err.startswith(named) is (without is not mutant)
