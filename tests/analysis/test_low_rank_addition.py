"""An addition of low rank by hand: what it changes, what it merges to, how many numbers it has, and that the model stays as it is."""

import pytest
import torch

import pellucid
from pellucid.analysis.low_rank_addition import added, by_rank, drawn
from pellucid.api.model import Model

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals-llama", dtype="float64")


def test_logits_by_hand(model: Model) -> None:
    """The moved logits are those of a model whose matrix is W + B·A, and the model itself is as before."""
    weight = model.module.get_parameter("layers.0.attn.q.weight")
    before, ids = weight.clone(), torch.tensor([model.ids(PROMPT)])
    with torch.no_grad():
        one = added(model, PROMPT, 3)
        assert (one.path, one.shape, one.numbers, one.idle) == ("layers.0.attn.q", (128, 128), 3 * 256, 0.0)
        assert torch.equal(weight, before) and type(model.module.get_submodule("layers.0.attn.q")).__name__ == "Linear"
        plain = model(ids)
        weight.add_(drawn((128, 3), weight) @ drawn((3, 128), weight))
        moved = float((model(ids) - plain).abs().max())
        weight.copy_(before)
    assert one.moved == pytest.approx(moved, rel=1e-9) and one.moved > 1e-3 and one.merged < 1e-10


def test_merged_twice_is_seen(model: Model) -> None:
    with torch.no_grad():
        assert added(model, PROMPT, 3, merges=2).merged > 1e-3


def test_a_b_that_does_not_begin_at_zero_is_seen(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros_like", torch.ones_like)
    with torch.no_grad():
        assert added(model, PROMPT, 3).idle > 1e-3


def test_numbers_of_every_matrix(model: Model) -> None:
    """Four blocks of the specimen: q and o 128 × 128, k and v 64 × 128, gate and up 192 × 128, down 128 × 192."""
    ends = 4 * (2 * 256 + 2 * 192 + 3 * 320)
    assert list(by_rank(model, [1, 4])) == [(r, r * ends, r * ends / model.num_parameters()) for r in (1, 4)]
