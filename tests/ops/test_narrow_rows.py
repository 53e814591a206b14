"""A product of many narrow rows, some at a time, has the bits of torch's, and so has its gradient; its sums take little memory.

Where a processor has no such products, factors are widened: each number is a sum in float32, rounded once.
"""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid import ops
from pellucid.ops import narrow_rows

Products = Callable[[bool], None]
PEAK = """
import torch
from pellucid import ops
from pellucid.ops import narrow_rows
from pellucid.training.meter import resident
narrow_rows.multiplied = lambda dtype: {products}
{edit}
x, weight = torch.randn(2048, 64).bfloat16().requires_grad_(), torch.randn(32768, 64).bfloat16()
ops.linear(x[:512], weight[:64])
before = resident()
y = ops.linear(x, weight)
print((resident() - before) / (y.numel() * 2))
"""


def grown(products: bool, edit: str = "") -> float:
    """Return by how much a process grew, at most, while it multiplied, over the bytes of the result.

    products: whether the processor is taken for one that has them.
    """
    code = PEAK.format(products=products, edit=edit)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Products:
    """Take the processor for one that has products of narrow numbers, or has none."""
    return lambda has: monkeypatch.setattr(narrow_rows, "multiplied", lambda dtype: has)


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]), dtype=dtype).requires_grad_()


@pytest.mark.parametrize(("dtype", "bias"), [(torch.bfloat16, True), (torch.float16, False)], ids=str)
def test_its_bits_are_torchs(products: Products, dtype: torch.dtype, bias: bool) -> None:
    products(True)
    x, weight = drawn(3, 427, 8, dtype=dtype), drawn(16411, 8, dtype=dtype)
    given = (x, weight, *([drawn(16411, dtype=dtype)] if bias else []))
    assert narrow_rows.fits(x, weight)
    own, theirs = ops.linear(*given), F.linear(*given)
    assert torch.equal(own, theirs)
    back = drawn(*own.shape, dtype=dtype).detach()
    for mine, other in zip(torch.autograd.grad(own, given, back), torch.autograd.grad(theirs, given, back), strict=True):
        assert torch.equal(mine, other)


def farthest(dtype: torch.dtype) -> float:
    """Return how far a product and its gradients are, at most, from float64's: in steps of the rounded number, beyond what sums may err."""
    x, weight, bias = drawn(2, 550, 70, dtype=dtype), drawn(3001, 70, dtype=dtype), drawn(3001, dtype=dtype)
    assert narrow_rows.fits(x, weight)
    y = ops.linear(x, weight, bias)
    back = drawn(*y.shape, dtype=dtype).detach()
    own = y, *torch.autograd.grad(y, (x, weight), back)
    rows, g, w = (t.detach().double() for t in (x, back, weight))
    exact = rows @ w.t() + bias.detach().double(), g @ w, g.flatten(0, 1).t() @ rows.flatten(0, 1)
    sizes = rows.abs() @ w.abs().t() + bias.detach().double().abs(), g.abs() @ w.abs(), g.flatten(0, 1).abs().t() @ rows.flatten(0, 1).abs()
    steps, sums = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    return max(
        float(
            ((mine.detach().double() - right).abs() - 100 * sums * size).div(right.abs().clamp(min=torch.finfo(dtype).tiny) * steps).max()
        )
        for mine, right, size in zip(own, exact, sizes, strict=True)
    )


def often(out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply as `widened` does, but round after every eight terms."""
    for at in range(0, a.shape[1], 8):
        out += (a[:, at : at + 8].float() @ b[at : at + 8].float()).to(out.dtype)
    return out if bias is None else out.add_(bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_without_products_sums_are_rounded_once(products: Products, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    products(False)
    assert farthest(dtype) <= 0.5
    monkeypatch.setattr(narrow_rows, "widened", lambda out, *given: often(out.zero_(), *given))
    assert farthest(dtype) > 1


@pytest.mark.parametrize("has", [True, False])
def test_of_a_frozen_matrix_no_row_is_kept(products: Products, monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    x, weight = drawn(600, 8, dtype=torch.bfloat16), drawn(32768, 8, dtype=torch.bfloat16)

    def kept(x: Tensor, weight: Tensor) -> set[int]:
        met = list[Tensor]()
        with torch.autograd.graph.saved_tensors_hooks(met.append, lambda at: None):
            ops.linear(x, weight)
        return {t.data_ptr() for t in met}

    products(has)
    assert kept(x, weight.detach()) == {weight.data_ptr()} and kept(x.detach(), weight) == {x.data_ptr()}
    assert kept(x, weight) == {x.data_ptr(), weight.data_ptr()}


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 1281), (torch.bfloat16, 100)])
def test_others_are_multiplied_at_once(products: Products, dtype: torch.dtype, rows: int) -> None:
    x, weight = drawn(rows, 40, dtype=dtype), drawn(16411, 40, dtype=dtype)
    products(True)
    assert not narrow_rows.fits(x, weight)
    products(False)
    assert narrow_rows.fits(x, weight) is (dtype is torch.bfloat16)
    assert not narrow_rows.fits(x[: narrow_rows.FEW - 1], weight)


@pytest.mark.skipif(sys.platform == "win32", reason="Python cannot tell a process' memory there")
@pytest.mark.parametrize("has", sorted({narrow_rows.multiplied(torch.bfloat16), False}))
def test_its_sums_take_little_memory(has: bool) -> None:
    assert grown(has) < 1.6
    assert grown(has, "narrow_rows.NarrowRows.forward = lambda ctx, x, weight, bias: (x.float() @ weight.float().t()).bfloat16()") > 2.5
