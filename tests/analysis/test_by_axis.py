"""Two runs row by row and head by head, also where rows moved, and the experts that their rows chose."""

from typing import Any

import pytest
import torch

import pellucid
from pellucid import zero
from pellucid.analysis.by_axis import along, loads
from pellucid.analysis.compare import Comparison, compare
from pellucid.api.model import Model
from tiny import swapped

PROMPT, LATER = "法国的首都是", "我知道法国的首都是"


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals-deepseek", dtype="float64")


def test_one_head_differs_and_the_others_are_exactly_0(model: Model) -> None:
    c = compare(pellucid.trace(model, PROMPT), pellucid.trace(model, PROMPT, edit=[zero("layers.1.attn.z", H=2)]))
    heads = along(c, "H")
    assert heads["layers.1.attn.z"] == [0.0, 0.0, 1.0, 0.0] and set(heads["layers.1.attn.pattern"]) == {0.0}
    assert all(heads["layers.2.attn.z"]) and "layers.1.ffn" not in heads


def by_hand(a: Any, b: Any, rows: list[tuple[int, int]], path: str) -> list[float]:
    """The relative difference of each pair of rows, [B T ...]."""
    x, y = a[path].value, b[path].value
    return [float((x[0, i] - y[0, j]).norm() / x[0, i].norm()) for i, j in rows]


def test_moved_rows_stand_beside_their_own(model: Model) -> None:
    """A longer text ends alike: its rows are compared with those of the same tokens. The mutant compares from the start."""
    a, b = pellucid.trace(model, PROMPT), pellucid.trace(model, LATER)
    c = compare(a, b)
    assert c.pairs and all(a.ids[i] == b.ids[j] for i, j in c.pairs) and any(i != j for i, j in c.pairs)
    for path in ("layers.1.out", "layers.0.attn.q", "layers.0.ffn.neurons", "layers.3.attn"):
        assert along(c, "T")[path] == pytest.approx(by_hand(a, b, c.pairs, path), abs=1e-12)
    assert along(c, "T")["embed"] == [0.0] * len(c.pairs)
    with swapped(Comparison, "pairs", [(i, i) for i in range(len(c.rows))]):
        assert along(c, "T")["embed"] != [0.0] * len(c.rows)


def test_loads_are_the_rows_choices(model: Model) -> None:
    a, b = pellucid.trace(model, PROMPT), pellucid.trace(model, LATER)
    counts = loads(compare(a, b))
    assert list(counts) == [f"layers.{n}.ffn.chosen" for n in (1, 2, 3)]
    for path, both in counts.items():
        for own, run in zip(both, (a, b), strict=True):
            assert own == [int((run[path].value == e).sum()) for e in range(8)]
            assert sum(own) == 2 * len(run.ids)  # two experts a row
    assert loads(compare(*(pellucid.trace(pellucid.load("pellucid/reader"), torch.arange(1, 5 + n).tolist()) for n in (0, 1)))) == {}
