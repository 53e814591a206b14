"""Rows that are computed alone: by a module whose rows are known to depend on each other, or not."""

import pytest
import torch
from torch import nn

import pellucid
from pellucid.analysis import independence
from pellucid.analysis.independence import alone_gaps, largest_beside, reads, row_gaps


def test_row_gaps_by_hand() -> None:
    a = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert row_gaps(a, a + torch.tensor([[[0.0, 0.5], [-2.0, 1.0]]])) == [0.5, 2.0]
    assert largest_beside([3.0, 1.0, 2.0], 0) == 2.0 and largest_beside([3.0], 0) == 0.0


@pytest.mark.parametrize("name", ["capitals", "capitals-llama", "capitals-deepseek"])
def test_the_feed_forward_part_alone(name: str) -> None:
    run = pellucid.trace(pellucid.load(f"pellucid/{name}", dtype="float64"), "The capital of France is")
    assert reads(run, "layers.1.ffn") == "layers.1.ffn_norm" and reads(run, "layers.1.attn") == "layers.1.attn_norm"
    assert max(alone_gaps(run, "layers.1.ffn")) < 1e-10
    first, *rest = alone_gaps(run, "layers.1.attn")
    assert first < 1e-10 and min(rest) > 1e-3  # the first token sees itself alone


def test_a_part_that_mixes_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pellucid.trace(pellucid.load("pellucid/capitals", dtype="float64"), "The capital of France is")
    mlp = run.runner.module.layers[1].ffn
    forward = mlp.forward

    def mixing(x: torch.Tensor, step: object = None) -> torch.Tensor:
        return forward(x - x.mean(1, keepdim=True), step)  # type: ignore[no-any-return]

    monkeypatch.setattr(mlp, "forward", mixing)
    assert isinstance(mlp, nn.Module) and max(independence.alone_gaps(run, "layers.1.ffn")) > 1e-3
