"""Gradients of tensors inside a fused op: filled beside the kernel, and equal to autograd's own where the open form runs in its place."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from pellucid import watch
from pellucid.watching import recomputing
from tiny import FAMILIES, inputs, swapped, tiny

attend = importlib.import_module("pellucid.ops.attend")  # the package has the function of this name


def gaps(family: str) -> list[float]:
    """Return, for each tensor inside attention, the largest difference of its gradient from that of the open form."""
    model, given = tiny(family), inputs(family)
    both = []
    for how in ("beside", "reference"):
        with watch(model, grad=True, inside=how) as seen:  # type: ignore[arg-type]
            model(*given).square().mean().backward()
        both.append({(s.path, s.call): s for s in seen})
    inner = [key for key, s in both[0].items() if s.source == "recomputed"]
    assert inner and all(both[1][key].source == "reference" for key in inner)
    out = []
    for key in inner:
        own, other = both[0][key].grad, both[1][key].grad
        assert own is not None and other is not None and float(other.abs().max()) > 1e-9, key
        out.append(float((own - other).abs().max()))
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_inside_are_autograd(family: str) -> None:
    """At 1e-10 in float64, for every family: scores and pattern, and keys and values made of a latent."""
    assert max(gaps(family)) < 1e-10


def test_a_gradient_of_another_output_is_seen() -> None:
    """The mutant takes the gradient of half of the reference's output."""

    @contextmanager
    def wrong(z: Tensor) -> Iterator[object]:
        with recomputing.recomputing(z) as compare:
            yield lambda reference: compare(reference * 0.5)

    with swapped(attend, "recomputing", wrong):
        assert max(gaps("llama")) > 1e-6


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_watching_changes_no_gradient(family: str) -> None:
    """The parameters' gradients have the same bits with and without."""
    model, given = tiny(family, torch.float32), inputs(family)
    model(*given).square().mean().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    with watch(model, grad=True):
        model(*given).square().mean().backward()
    assert all(torch.equal(plain[name], p.grad) for name, p in model.named_parameters())


def test_without_a_backward_there_is_none() -> None:
    model = tiny("llama")
    with torch.no_grad(), watch(model, grad=True) as seen:
        model(*inputs("llama"))
    assert all(s.grad is None for s in seen)
