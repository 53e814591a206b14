"""Losses of one pass and of single passes, against cross entropy by torch."""

import pytest
import torch

import pellucid
from pellucid.analysis.position_losses import apart, in_one_pass, one_by_one
from pellucid.api.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals-llama", dtype="float64")


def test_losses_are_cross_entropy(model: Model) -> None:
    ids = model.ids("The capital of Japan is Tokyo.")
    with torch.no_grad():
        once, each = in_one_pass(model, ids), one_by_one(model, ids)
        want = torch.nn.functional.cross_entropy(model(torch.tensor([ids[:-1]]))[0], torch.tensor(ids[1:]), reduction="none")
    n = len(ids) - 1
    assert once.values == pytest.approx(want.tolist(), abs=1e-12) and apart(once, each) < 1e-10
    assert (once.passes, once.rows, each.passes, each.rows) == (1, n, n, n * (n + 1) // 2)


def test_an_open_mask_shows(model: Model) -> None:
    ids = model.ids("The capital of Japan is Tokyo.")
    with torch.no_grad():
        assert apart(in_one_pass(model, ids, causal=False), one_by_one(model, ids)) > 1e-3
