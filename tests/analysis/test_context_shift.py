"""A word's rows in two texts, by hand and with attention off; another word and a changed table are seen."""

import pytest
import torch

import pellucid
from pellucid.analysis import context_shift as shift
from pellucid.analysis.rows import plane_of
from pellucid.errors import UseError
from pellucid.watching.change import zero

FIRST, SECOND, WORD = "The capital of Singapore is", "The city of Singapore is the capital of", "Singapore"


@pytest.fixture(scope="module")
def runs() -> list[pellucid.Trace]:
    model = pellucid.load("pellucid/capitals", dtype="float64")
    return [pellucid.trace(model, text) for text in (FIRST, SECOND)]


def test_rows_of_a_word(runs: list[pellucid.Trace]) -> None:
    rows = shift.word_rows(runs[0], WORD)
    assert shift.word_row(runs[0], WORD) == 3 and rows.shape == (5, 128)
    assert torch.equal(rows[0], runs[0]["start"].value[0, 3]) and torch.equal(rows[4], runs[0]["layers.3.out"].value[0, 3])
    with pytest.raises(UseError):
        shift.word_row(runs[0], "Malta")


def test_cosines_by_hand() -> None:
    a, b = torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[2.0, 0.0], [4.0, -3.0]])
    assert shift.cosines(a, b) == pytest.approx([1.0, 0.0])


def test_the_plane_keeps_distances() -> None:
    """Rows of two dimensions lie on the plane itself: the share is all, and no distance changes."""
    x = torch.tensor([[0.0, 0.0, 1.0], [3.0, 0.0, 1.0], [0.0, 4.0, 1.0]], dtype=torch.float64)
    places, share = plane_of(x)
    assert share == 100 and torch.allclose(torch.cdist(places, places), torch.cdist(x, x))
    assert plane_of(torch.eye(4, dtype=torch.float64))[1] == 67  # two of three equal directions


def test_attention_alone_moves_a_word(runs: list[pellucid.Trace]) -> None:
    bare = [pellucid.trace(r.runner, r.ids, edit=[zero("layers.*.attn")]) for r in runs]
    a, b = (shift.word_rows(r, WORD) for r in bare)
    assert float((a - b).abs().max()) < 1e-10
    assert float((shift.word_rows(runs[0], WORD) - shift.word_rows(runs[1], WORD)).abs().max()) > 0.1
    assert shift.table_gap(runs[0], runs[1], WORD) == 0.0
    other = pellucid.trace(runs[0].runner, "The capital of Malta is")
    assert float((shift.word_rows(other, "Malta") - a).abs().max()) > 0.1


def test_the_hash_sees_a_change() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    before = shift.table_hash(model)
    pellucid.trace(model, FIRST)
    assert shift.table_hash(model) == before and len(before) == 16
    with torch.no_grad():
        model.module.get_parameter("embed.weight")[7, 7] += 1e-3
    assert shift.table_hash(model) != before
