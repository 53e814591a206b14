"""The error of a low-rank twin: the sum of the dropped squares, and of no others."""

import pytest
import torch

import pellucid
from pellucid.analysis import thin
from pellucid.analysis.thin import Loss, loss, singular_values

PATH = "layers.1.ffn.up"


def test_loss_by_hand() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float64")
    low = pellucid.variant(model, {f"{PATH}.rank": 8})
    values = singular_values(model, PATH)
    w = model.weight(f"{PATH}.weight")
    own = loss(model, low, PATH, values, 8)
    u, s, v = torch.linalg.svd(w, full_matrices=False)
    assert own.error == pytest.approx(float((w - (u[:, :8] * s[:8]) @ v[:8]).square().sum()), abs=1e-10)
    assert own.gap < 1e-10 and own.numbers == 8 * (128 + 512) and own.before == 128 * 512
    assert own.size == pytest.approx(float(w.square().sum())) and own.share == 100 * 8 * 640 / (128 * 512)
    assert loss(model, model, PATH, values, 128) == Loss(0, 0.0, own.size, w.numel(), w.numel())


def test_a_dropped_value_is_seen() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float64")
    low = pellucid.variant(model, {f"{PATH}.rank": 8})
    values = singular_values(model, PATH)
    assert thin.loss(model, low, PATH, [*values[:-1], 0.0], 7).gap > 1e-3
    assert thin.loss(model, low, PATH, [*values[:20], *values[21:]], 8).gap > 1e-5
