"""An addition of low rank by hand: what it changes, what it merges to, how many numbers it has, and that the model stays as it is."""

import pytest
import torch
from torch import nn

import pellucid
from pellucid.analysis import trained_addition as trained_module
from pellucid.analysis.low_rank_addition import added, by_rank, drawn, merge
from pellucid.analysis.trained_addition import trained_addition
from pellucid.api.model import Model
from pellucid.nn.low_rank import thinnable

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


def test_training_moves_the_addition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are learned beside the weights and stay after the merge; the mutants merge twice, and train a weight of the model."""
    reader = pellucid.load("pellucid/reader", dtype="float64")
    with torch.no_grad():
        one, none = trained_addition(reader, 2, 12), trained_addition(reader, 2, 0)
        width = sum(m.in_features + m.out_features for m in thinnable(reader.module).values())
        assert one.numbers == 2 * width and one.right[0] == none.right[1] < one.right[1] == one.right[2]
        assert one.unchanged and one.gap < 1e-10 and one.parameters == reader.num_parameters()
        with monkeypatch.context() as patched:
            patched.setattr(trained_module, "merge", lambda layer, times: merge(layer, 2))
            assert trained_addition(reader, 2, 12).gap > 1e-3
        with monkeypatch.context() as patched:
            patched.setattr(nn.Module, "requires_grad_", lambda module, on=True: module)  # what training freezes, it trains
            for p in reader.module.parameters():
                p.requires_grad_(True)
            assert not trained_addition(reader, 2, 2).unchanged
