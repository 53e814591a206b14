"""Trials that begin with one change are forks of its run; trials that take what a run has already are not run."""

import itertools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import add, noise, patch, sweep, take, times, zero
from pellucid.api.model import Model
from pellucid.api.sweep import KeyedSweep
from pellucid.engine.forks import Fork, Forks
from pellucid.errors import PellucidError
from pellucid.watching import taken_cells
from pellucid.watching.change import Change
from tiny import swapped

FRANCE, JAPAN = "The capital of France is", "The capital of Japan is"
SWEEP = sys.modules["pellucid.api.sweep"]


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float64")


@contextmanager
def counted() -> Iterator[list[Fork]]:
    """Collect the forks that run."""
    ran, right = list[Fork](), Forks.forward

    def forward(self: Forks, forks: Any) -> Tensor:
        ran.extend(forks)
        return right(self, forks)

    with swapped(Forks, "forward", forward):
        yield ran


def trials(model: Model) -> dict[Any, list[Change]]:
    """Windows of blocks of which two draws of noise are repaired, some trials whose first change is no other's, and none."""
    source = pellucid.trace(model, FRANCE)
    drawn = noise("France", 3.0, draws=2).changes(model, source.ids)
    windows = {
        (part, i, t): [take(f"layers.{n}.{part}", source, T=t) for n in (i, i + 1)]
        for part in ("attn", "ffn")
        for i in range(3)
        for t in range(5)
    }
    out: dict[Any, list[Change]] = {(n, *key): [one, *put] for (n, one), (key, put) in itertools.product(enumerate(drawn), windows.items())}
    scale = times("layers.2.mid", 1.1)
    out |= {"scaled": [scale, zero("layers.1.attn.z", H=1)], "scaled, early": [scale, add("embed", 0.25, T=1)]}
    return out | {
        "alone": [zero("layers.0.ffn", T=-1), zero("layers.3.ffn")],
        "one": [scale],
        "hook": [zero("blocks.1.attn.hook_z", H=1)],
        "none": [],
    }


def apart(model: Model, s: KeyedSweep, metric: str) -> float:
    """Return the largest difference of a trial's number from its lone run's."""
    base = pellucid.trace(model, FRANCE).last_logits().log_softmax(-1)
    own = {key: s.run(key).last_logits().log_softmax(-1) for key in s.trials}
    token = model.tokenizer.encode(" Paris", special=False)[0]
    return max(abs(s.values[key] - float((base.exp() * (base - x)).sum() if metric == "kl" else x[token])) for key, x in own.items())


@pytest.mark.parametrize("metric", ["kl", " Paris"])
def test_each_trial_is_its_lone_run(model: Model, metric: str) -> None:
    """The divergence is that from the run without any change, the shared one's neither."""
    own = trials(model)
    with counted() as ran:
        s = sweep(model, FRANCE, own, metric)
    assert list(s.values) == list(own) and apart(model, s, metric) < 1e-10
    repaired = [
        f for f in ran if len(f.changes) == 2 and {c.path.rpartition(".")[2] for c in f.changes} <= {"attn", "ffn"} and f.first >= 3
    ]
    assert {f.entry[1] for f in repaired} == {0, 1, 2}  # of a noisy run they enter where it is repaired, not at the embedding
    assert sum(len(c) > 1 and f"T={t}" in c[1].text for c in own.values() for t in (3, 4)) == len(repaired)


def other_first(own: Any) -> Any:
    """A mutant: trials of the second draw are forks of the first draw's run."""
    out = right_by_first(own)
    draws = [key for key in out if key is not None and key.path == "embed"]
    return {
        None: out[None],
        **{draws[0] if key in draws else key: [k for d in draws for k in out[d]] if key in draws else out[key] for key in out if key},
    }


def beside_own_run(model: Model, forks: Forks, own: Any, measure: Any, unchanged: Any = None) -> Tensor:
    """A mutant: a divergence from the run that the trials share."""
    return right_numbers(model, forks, own, measure)  # type: ignore[no-any-return]


right_by_first, right_numbers = SWEEP.by_first, SWEEP.numbers


@pytest.mark.parametrize(("name", "mutant"), [("by_first", other_first), ("numbers", beside_own_run)])
def test_mutants_of_shared_runs_are_seen(model: Model, name: str, mutant: Any) -> None:
    with swapped(SWEEP, name, mutant):
        assert apart(model, sweep(model, FRANCE, trials(model), "kl"), "kl") > 1e-3


def test_what_a_run_has_already_is_not_run_again(model: Model) -> None:
    """The rows before the first token that differs: their cells are those of both runs."""
    with counted() as ran:
        s = patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H T", (" Paris", " Tokyo"))
    assert torch.equal(s.values[:, :, :3], torch.full((4, 4, 3), s.base, dtype=torch.float64))
    assert bool((s.values[:, :, 3:] != s.base).all())
    assert len(ran) == 4 * 4 * 2 + 1 == 1 + sum(f.first >= 3 for f in ran)
    for t in (0, 3):
        run = s.run("layers.1.attn.z", H=2, T=t).last_logits()
        x, y = (model.tokenizer.encode(word, special=False)[0] for word in (" Paris", " Tokyo"))
        assert float(run[x] - run[y]) == pytest.approx(float(s.values[1, 2, t]), abs=1e-10)


def test_a_row_that_differs_in_one_cell_is_run(model: Model) -> None:
    """And a row that a trial with two changes takes from its own run, behind a change that moves it."""
    source = pellucid.trace(model, FRANCE)
    source.all("layers.1.attn.z")[0].value[0, 2, 3, -1] += 2.0
    moved, same = take("layers.1.attn.z", source, T=2), take("layers.1.out", pellucid.trace(model, FRANCE), T=3)
    own = {
        "moved": [moved],
        "head": [take("layers.1.attn.z", source, T=2, H=3)],
        "same": [same],
        "behind": [zero("layers.0.ffn", T=3), same],
    }
    s = sweep(model, FRANCE, own, " Paris")
    assert apart(model, s, " Paris") < 1e-10 and s.values["same"] == s.base != s.values["moved"] == pytest.approx(
        s.values["head"], abs=1e-12
    )
    assert s.values["behind"] != s.base
    with swapped(taken_cells, "equal_rows", lambda x, other, axis: [True] * x.shape[axis]):
        assert apart(model, sweep(model, FRANCE, own, " Paris"), " Paris") > 1e-6


def test_a_cell_that_does_not_exist_is_refused(model: Model) -> None:
    """Also of a row that is equal in both runs."""
    source = pellucid.trace(model, FRANCE)
    for change in (take("layers.1.attn.z", source, T=1, H=9), take("layers.1.attn.z", source, T=7)):
        with pytest.raises(PellucidError):
            sweep(model, FRANCE, {"beyond": change}, " Paris")


@pytest.mark.parametrize("path", ["layers.9.out", "layers.*.nix", "logits.more"])
def test_a_tensor_that_does_not_exist_is_named_as_the_edits(model: Model, path: str) -> None:
    """By the change that a person wrote, alone and behind a shared one; not by what is compared."""
    source = pellucid.trace(model, FRANCE)
    first = zero("layers.0.ffn", T=1)
    for own in ({"alone": take(path, source, T=1)}, {n: [first, take(path, source, T=n)] for n in (1, 2)}):
        with pytest.raises(PellucidError, match=f"edit of {re.escape(path)} met no tensor"):
            sweep(model, FRANCE, own, " Paris")


def test_logits_of_the_wanted_row_alone_are_not_compared(model: Model) -> None:
    source = pellucid.trace(model, FRANCE)
    s = sweep(model, FRANCE, {"last": [take("logits", source, T=4)], "norm": [take("norm", source, T=4)]}, " Paris")
    assert s.values == pytest.approx({"last": s.base, "norm": s.base}, abs=1e-10)
