"""The length of a run in epochs or tokens: the steps that see each document so often, and the tokens that the log counts."""

from itertools import pairwise
from pathlib import Path

import pytest

import pellucid
from covering import FULL
from pellucid.commands import main
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.training import run_length, run_recipe
from pellucid.training.loop import feed
from pellucid.training.replay import Replay
from test_recipe import written
from text_runs import recipe_of
from tiny import swapped
from training import corpus_of, silent, unmeasured


def ran(recipe: Path, out: Path) -> Replay:
    with unmeasured():
        return pellucid.Run(run_recipe(recipe, out, False, 1, silent).parent)


@pytest.mark.parametrize("kind", ["facts", "texts"])
@pytest.mark.quick(2)
def test_two_epochs(kind: str, tmp_path: Path) -> None:
    """Every document twice, but that rows follow without a gap; a run of the same number of steps has the same log."""
    if kind == "facts":
        corpus_of(tmp_path / "corpus", "France", "Spain")
        given, make = {"folder": '"corpus"'}, lambda name, **changed: written(tmp_path / name, **given, **changed)
    else:
        given, make = {}, lambda name, **changed: recipe_of(tmp_path, **changed)
    run = ran(make("a.toml", batch="30", steps=None, train__epochs="2"), tmp_path / "run")
    last, training = run.log[-1]["step"], run.built[0]
    seen = [number for _, numbers in zip(range(last), feed(training.documents, training.s, 0), strict=False) for number in numbers]
    counts = {seen.count(number) for number in range(len(training.documents))}
    assert counts == {2} if kind == "facts" else counts <= {2, 3} and 2 in counts
    assert training.s.steps == last == run.recipe.train.steps and run.replay(2).entry["step"] == 2
    other = ran(make("b.toml", batch="30", steps=str(last)), tmp_path / "other")
    assert [e["loss"] for e in other.log] == [e["loss"] for e in run.log]
    with swapped(run_length, "epoch_steps", lambda documents, batch, pool: 1.0):
        assert ran(make("a.toml", batch="30", steps=None, train__epochs="2"), tmp_path / "short").log[-1]["step"] == 2 < last


@pytest.mark.parametrize("kind", ["facts", "texts"] if FULL else ["texts"])
def test_tokens(kind: str, tmp_path: Path) -> None:
    """Of whole epochs the log counts the same tokens, to a step's; a goal in between ends in between."""
    if kind == "facts":
        corpus_of(tmp_path / "corpus", "France", "Spain")
    make = (lambda **changed: written(tmp_path / "r.toml", **changed)) if kind == "facts" else (lambda **c: recipe_of(tmp_path, **c))
    epoch = ran(make(steps=None, train__epochs="1"), tmp_path / "epoch").log
    most = max(b["tokens"] - a["tokens"] for a, b in pairwise(epoch))
    goal = epoch[-1]["tokens"]
    run = ran(make(steps=None, train__tokens=str(2 * goal)), tmp_path / "two").log
    assert abs(run[-1]["tokens"] - 2 * goal) <= 2 * most
    half = ran(make(steps=None, train__tokens=str(goal / 2)), tmp_path / "half").log
    assert half[-1]["step"] == -(-len(epoch) // 2) or abs(half[-1]["step"] - len(epoch) / 2) <= 1


def test_the_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of tokens at least the steps of full rows; of epochs a step alone, since the tokens are not made yet."""
    tokens = recipe_bill(recipe_of(tmp_path, steps=None, train__tokens="1e6"))
    assert tokens.steps == -(-1_000_000 // (8 * 32)) and tokens.run()["tokens"] == tokens.steps * 8 * 32
    epochs = recipe_of(tmp_path, steps=None, train__epochs="3")
    assert recipe_bill(epochs).steps is None and not any(recipe_bill(epochs).run().values())
    for how in ([], ["--json"]):
        assert main(["count", str(epochs), *how]) == 0
    assert "epochs" in capsys.readouterr().out
