"""Work, chains and reach of layers, by hand: FLOPs from shapes, chains from a forward's own steps."""

import pytest
import torch

import pellucid
from pellucid.analysis.independence import rows_of
from pellucid.analysis.needs import REACHING, unmet
from pellucid.analysis.sequence_layers import (
    attention,
    contiguous_layers,
    convolution,
    dilated_layers,
    gru,
    influence,
    layers_needed,
    random_rows,
    reaching,
    work,
)
from pellucid.nn.recurrent import CausalConvolution

D, N = 128, 12


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.load("pellucid/capitals", dtype="float64")


def test_work_by_hand(model: pellucid.Model) -> None:
    x = random_rows(model, N)
    assert work(attention(model), x).flops == 4 * 2 * N * D * D + 2 * 2 * N * N * D
    assert work(gru(model), x).flops == 6 * 2 * N * D * D
    assert work(convolution(model, 3, 2), x).flops == 2 * 3 * 2 * N * D * D


def test_chains_by_hand(model: pellucid.Model) -> None:
    """A step of a GRU adds seven operations after the state before it: product, sum, gate, times, sum, tanh, blend."""
    assert [work(gru(model), random_rows(model, n)).chain for n in (3, 4, 10)] == [3 * 7 + 1, 4 * 7 + 1, 10 * 7 + 1]
    assert [work(attention(model), random_rows(model, n)).chain for n in (4, 40)] == [3, 3]


def test_influence_and_reach(model: pellucid.Model) -> None:
    x = rows_of(pellucid.trace(model, "The capital of France is"))
    near, far = influence(convolution(model, 2), x), influence(attention(model), x)
    assert reaching(near) == 2 and reaching(far) == 5
    assert [[v is not None for v in row] for row in near] == [[0 <= i - j < 2 for j in range(5)] for i in range(5)]
    changed = x.clone()
    changed[0, 2] = x[0, 1]
    layer = attention(model)
    assert far[4][2] == pytest.approx(float((layer(changed) - layer(x))[0, 4].abs().max()))


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("rows", [2, 5, 9, 17])
def test_layers(model: pellucid.Model, rows: int, kernel: int) -> None:
    with torch.no_grad():
        assert layers_needed(model, rows, kernel, dilated=True) == dilated_layers(rows, kernel)
        assert layers_needed(model, rows, kernel, dilated=False) == contiguous_layers(rows, kernel)


def test_dilation_counted_as_one_is_seen(model: pellucid.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CausalConvolution.__init__
    monkeypatch.setattr(CausalConvolution, "__init__", lambda self, width, kernel, dilation=1: plain(self, width, kernel))
    assert layers_needed(model, 17, 3, dilated=True) == contiguous_layers(17, 3) > dilated_layers(17, 3)


def test_fits(model: pellucid.Model) -> None:
    assert unmet(REACHING, model.config) is None
    for name in ("capitals-deepseek", "capitals-bert", "capitals-t5", "reader"):
        assert unmet(REACHING, pellucid.load(f"pellucid/{name}", device="meta").config) is not None
