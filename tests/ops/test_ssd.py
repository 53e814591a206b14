"""Mamba-2's ops: the scan beside its dual form, the step in time between limits, norms by groups, and their kernels."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.states import States, TextStates
from pellucid.nn.norm import GroupRmsNorm
from pellucid.ops import native
from pellucid.watching.watch import watch
from test_plan import needs_kernels
from tiny import far, swapped

HEADS, GROUPS, KEY, VALUE, ROWS = 6, 2, 10, 20, 17  # no multiple of a vector
SSD = import_module("pellucid.ops.ssd")  # the package has the op under this name


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def operands(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return x, b, c, dt, decay and skip of two texts."""
    x, b, c = (drawn(i, 2, ROWS, *sizes, dtype=dtype) for i, sizes in enumerate([(HEADS, VALUE), (GROUPS, KEY), (GROUPS, KEY)]))
    dt = ops.softplus(drawn(3, 2, ROWS, HEADS, dtype=dtype), drawn(4, HEADS, dtype=dtype))
    return [x, b, c, dt, ops.decay(dt, drawn(5, HEADS, dtype=dtype) - 2), drawn(6, HEADS, dtype=dtype)]


def states() -> States:
    """Return the states of two texts that begin here."""
    return States([TextStates(slice(None), torch.arange(ROWS).expand(2, ROWS))])


def dual(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, decay: Tensor, skip: Tensor) -> Tensor:
    """Return the same by the paper's dual form: (L ∘ C Bᵀ) · dt x, L the products of all decays between two rows."""
    b, c = (rows.repeat_interleave(HEADS // GROUPS, 2) for rows in (b, c))
    total = decay.log().cumsum(1)
    between = (total[:, :, None] - total[:, None]).exp() * torch.ones(ROWS, ROWS, dtype=x.dtype).tril()[None, :, :, None]
    scores = torch.einsum("bthk,bshk->btsh", c, b) * between
    return torch.einsum("btsh,bshw->bthw", scores, dt[..., None] * x) + skip[:, None] * x


def test_the_scan_is_its_dual() -> None:
    given = operands()
    right = dual(*given)
    assert far(ops.ssd(*given, states()), right) < 1e-12
    for wrong in (replace(SSD.HOW, corrects=True), replace(SSD.HOW, scale=1.1)):
        with swapped(SSD, "HOW", wrong):
            assert far(ops.ssd(*given, states()), right) > 0.1
    assert far(ops.ssd(*given[:5], given[5] * 0, states()), right) > 0.1


def test_gradients_of_the_scan() -> None:
    given = [x[:, :5].contiguous().requires_grad_() if x.ndim > 1 else x.requires_grad_() for x in operands()]
    few = States([TextStates(slice(None), torch.arange(5).expand(2, 5))])
    assert torch.autograd.gradcheck(lambda *x: ops.ssd(*x, few), given, fast_mode=True)


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_err_no_more(dtype: torch.dtype) -> None:
    """Judged in float64, of the same operands."""
    given = operands(dtype)
    y = ops.ssd(*given, states())
    with native.off():
        other, reference = operands(dtype), ops.ssd(*given, states())
    right = dual(*(x.double() for x in given))
    assert all(far(a, b) < 1e-6 for a, b in zip(given, other, strict=True))
    assert y.dtype is dtype and far(y, right) <= 2 * far(reference, right) + 1e-6
    assert not torch.equal(y, ops.ssd(*given[:5], given[5] + 1, states()))


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize("texts", [1, 2])
def test_a_plain_batch_runs_by_the_kernel(texts: int) -> None:
    given, calls = [x[:texts] if x.ndim > 1 else x for x in operands(torch.float32)], list[int]()
    own = native.scan

    def counted(*how: object) -> Tensor:
        calls.append(1)
        return own(*how)  # type: ignore[arg-type]

    with swapped(native, "scan", counted):
        y = ops.ssd(*given, States([TextStates(slice(None), torch.arange(ROWS).expand(texts, ROWS))]))
    assert calls == [1] and far(y, dual(*(x.double() for x in given))) < 1e-4


@torch.no_grad()
def test_a_step_in_time_keeps_its_limits() -> None:
    x, bias = drawn(1, 1, 9, HEADS), drawn(2, HEADS)
    free = (1 + (x + bias).exp()).log()
    for least, most in ((0.0, None), (0.3, None), (0.0, 0.9), (0.3, 0.9)):
        right = free.clamp(least, most)
        assert far(ops.softplus(x, bias, least, most), right) < 1e-12
        assert far(ops.softplus(x.float(), bias.float(), least, most), right) < 1e-6
    assert (free > 0.9).any() and (free < 0.3).any()
    large = torch.full((1, 1, HEADS), 90.0)
    assert torch.equal(ops.softplus(large, torch.zeros(HEADS)), large)
    assert far(ops.decay(free, bias), (-free * bias.exp()).exp()) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_each_group_of_heads_has_its_norm(groups: int, dtype: torch.dtype) -> None:
    norm, x, gate = GroupRmsNorm(HEADS * VALUE, 1e-3, groups).to(dtype), drawn(1, 2, 3, HEADS, VALUE), drawn(2, 2, 3, HEADS, VALUE)
    norm.weight.copy_(drawn(3, HEADS * VALUE))
    gated = (x * gate * gate.sigmoid()).flatten(2).unflatten(2, (groups, -1))
    right = (gated / (gated.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()).flatten(2) * drawn(3, HEADS * VALUE)
    with watch(norm, terms=True) as seen:
        y = norm(x.to(dtype), gate.to(dtype))
    bound = 1e-12 if dtype is torch.float64 else 1e-5
    assert far(y.flatten(2), right) < bound and {s.path for s in seen} == {"gated"}
    other = GroupRmsNorm(HEADS * VALUE, 1e-3, 1 if groups > 1 else 2).to(dtype)
    other.load_state_dict(norm.state_dict())
    assert far(other(x.to(dtype), gate.to(dtype)).flatten(2), right) > 1e-3
