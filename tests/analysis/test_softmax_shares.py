"""The softmax by hand: powers, shares, entropy, and what a constant, a temperature or another row does."""

import math

import pytest
import torch

from pellucid.analysis import softmax_shares
from pellucid.analysis.softmax_shares import entropy_at, order_kept, share_gap, shifted_gap, softmax_table

LOGITS = torch.tensor([math.log(1.0), math.log(5.0), math.log(2.0)], dtype=torch.float64)


def test_shares_by_hand() -> None:
    table = softmax_table(LOGITS, LOGITS, 2)
    assert [s.id for s in table.shares] == [1, 2]
    assert [s.power for s in table.shares] == pytest.approx([1.0, 0.4]) and table.total == pytest.approx(1.6)
    assert [s.share for s in table.shares] == pytest.approx([5 / 8, 2 / 8]) and table.gap < 1e-15
    assert [s.logit - s.below for s in table.shares] == pytest.approx([math.log(5.0)] * 2)


def test_another_row_has_other_shares() -> None:
    assert softmax_table(LOGITS, LOGITS.flip(0), 2).gap == pytest.approx(1 / 8)
    assert share_gap(LOGITS, LOGITS.flip(0)) == pytest.approx(1 / 8)


def test_entropy_and_order_by_temperature() -> None:
    assert entropy_at(torch.zeros(8), 3.0) == pytest.approx(3.0)
    assert entropy_at(LOGITS, 1.0) == pytest.approx(-sum(p * math.log2(p) for p in (1 / 8, 5 / 8, 2 / 8)))
    assert entropy_at(LOGITS, 0.5) < entropy_at(LOGITS, 1.0) < entropy_at(LOGITS, 2.0) < math.log2(3)
    assert order_kept(LOGITS, 4.0) and shifted_gap(LOGITS, 100.0) < 1e-14


def test_an_upset_order_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_shares, "probabilities", lambda x, t=1.0: (-x).softmax(-1))
    assert not order_kept(LOGITS, 2.0)
