"""Sums of rows by hand, and the order of the rows nearest to one."""

import pytest
import torch

import pellucid
from pellucid.analysis import word_vectors
from pellucid.analysis.word_vectors import combined, nearest_rows, place_of
from pellucid.errors import UseError


def test_sum_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float64")
    a, b = (model.tokenizer.encode(word)[0] for word in (" Paris", " Japan"))
    table = model.module.embed.weight
    assert torch.equal(combined(model, [" Paris"], [" Japan"]), table[a] - table[b])
    assert torch.equal(combined(model, [" Paris"], shift=1), table[a + 1])
    near = nearest_rows(model, 3 * table[a])
    assert near[0].piece == " Paris" and near[0].cosine == pytest.approx(1.0, abs=1e-10) and [n.rank for n in near] == [*range(1, 4481)]
    other = next(n for n in near if n.piece == " Japan")
    assert other.cosine == pytest.approx(float(torch.cosine_similarity(table[a], table[b], dim=0)), abs=1e-10)
    assert place_of(model, near, " Japan") == other
    assert sum(n.cosine > other.cosine for n in near) == other.rank - 1
    monkeypatch.setattr(word_vectors, "rows", lambda m: m.module.embed.weight.double().roll(1, 0))
    assert nearest_rows(model, 3 * table[a])[0].piece != " Paris"


def test_a_word_of_several_pieces_is_refused() -> None:
    with pytest.raises(UseError, match="Banana"):
        combined(pellucid.load("pellucid/capitals"), [" Banana"])
