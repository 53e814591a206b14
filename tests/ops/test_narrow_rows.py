"""A product of many narrow rows, some at a time, has the bits of torch's, and so has its gradient; its sums take little memory."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid import ops
from pellucid.ops import narrow_rows

PEAK = """
import torch
from pellucid import ops
from pellucid.ops import narrow_rows
from pellucid.training.meter import resident
{edit}
x, weight = torch.randn(2048, 64).bfloat16().requires_grad_(), torch.randn(32768, 64).bfloat16()
ops.linear(x[:512], weight[:64])
before = resident()
y = ops.linear(x, weight)
print((resident() - before) / (y.numel() * 2))
"""


def grown(edit: str = "") -> float:
    """Return by how much a process grew, at most, while it multiplied, over the bytes of the result."""
    done = subprocess.run([sys.executable, "-c", PEAK.format(edit=edit)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]), dtype=dtype).requires_grad_()


@pytest.mark.parametrize(("dtype", "bias"), [(torch.bfloat16, True), (torch.float16, False)], ids=str)
def test_its_bits_are_torchs(dtype: torch.dtype, bias: bool) -> None:
    x, weight = drawn(3, 427, 40, dtype=dtype), drawn(16411, 40, dtype=dtype)
    given = (x, weight, *([drawn(16411, dtype=dtype)] if bias else []))
    assert narrow_rows.fits(x, weight)
    own, theirs = ops.linear(*given), F.linear(*given)
    assert torch.equal(own, theirs)
    back = drawn(*own.shape, dtype=dtype).detach()
    for mine, other in zip(torch.autograd.grad(own, given, back), torch.autograd.grad(theirs, given, back), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 1281), (torch.bfloat16, 100)])
def test_others_are_multiplied_at_once(dtype: torch.dtype, rows: int) -> None:
    assert not narrow_rows.fits(drawn(rows, 40, dtype=dtype), drawn(16411, 40, dtype=dtype))


@pytest.mark.skipif(sys.platform == "win32", reason="Python cannot tell a process' memory there")
def test_its_sums_take_little_memory() -> None:
    assert grown() < 1.6
    assert grown("narrow_rows.NarrowRows.forward = lambda ctx, x, weight, bias: (x.float() @ weight.float().t()).bfloat16()") > 2.5
