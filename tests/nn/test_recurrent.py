"""The layers beside attention, against torch's own GRU and conv1d, in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pellucid.nn.recurrent import CausalConvolution, Gru
from pellucid.ops import recurrent
from pellucid.watching.watch import watch

WIDTH, ROWS = 6, 9


def filled(module: nn.Module) -> nn.Module:
    draw = torch.Generator().manual_seed(0)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64)
    return module.requires_grad_(False)


X = torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def library_gru(own: nn.Module) -> nn.GRU:
    """Return torch's GRU with the same weights: it stacks reset, update, new."""
    theirs = nn.GRU(WIDTH, WIDTH, batch_first=True, dtype=torch.float64).requires_grad_(False)
    for side, name in (("ih", "x"), ("hh", "h")):
        layers = [own.get_submodule(f"{name}_{gate}") for gate in ("reset", "keep", "new")]
        getattr(theirs, f"weight_{side}_l0").copy_(torch.cat([layer.weight for layer in layers]))
        getattr(theirs, f"bias_{side}_l0").copy_(torch.cat([layer.bias for layer in layers]))
    return theirs


def test_gru() -> None:
    own = filled(Gru(WIDTH))
    assert torch.allclose(own(X), library_gru(own)(X)[0], atol=1e-12)


def test_a_gru_that_blends_the_wrong_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    own = filled(Gru(WIDTH))
    monkeypatch.setattr("pellucid.nn.recurrent.blended", lambda new, old, keep: recurrent.blended(old, new, keep))
    assert not torch.allclose(own(X), library_gru(own)(X)[0], atol=1e-3)


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 2), (2, 4), (4, 5)])
def test_convolution(kernel: int, dilation: int) -> None:
    own = filled(CausalConvolution(WIDTH, kernel, dilation))
    weight = torch.stack([linear.weight for linear in reversed(own.taken)], -1)
    padded = F.pad(X.mT, ((kernel - 1) * dilation, 0))
    want = F.conv1d(padded, weight, own.taken[0].bias, dilation=dilation).mT
    assert torch.allclose(own(X), want, atol=1e-12)
    assert kernel == 1 or not torch.allclose(filled(CausalConvolution(WIDTH, kernel, dilation + 1))(X), want, atol=1e-3)


@pytest.mark.parametrize("make", [lambda: Gru(WIDTH), lambda: CausalConvolution(WIDTH, 3, 2)])
def test_terms_sum_to_their_cells(make: type[nn.Module]) -> None:
    with watch(own := filled(make()), terms=True) as seen:
        own(X)
    cells = [(s, index) for s in seen if s.terms is not None for index in ((0,) * s.value.ndim, tuple(n - 1 for n in s.shape))]
    assert {s.op for s, _ in cells} >= ({"linear", "times", "blended"} if isinstance(own, Gru) else {"linear", "shifted", "add"})
    for s, index in cells:
        assert s.terms is not None and s.terms(index).total() == pytest.approx(float(s.value[index]), abs=1e-10), s.path
