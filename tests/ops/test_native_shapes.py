"""A kernel gets pointers, and reads past an end where shapes do not fit: operands that the reference refuses never reach one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.ops import native
from pellucid.ops.native import twins
from tiny import swapped

X = torch.randn(2, 4, 32)
HALF = torch.randn(1, 4, 1, 4)


def product(out: int, width: int, bias: int | None = None) -> Callable[[], Tensor]:
    return lambda: ops.linear(X, torch.randn(out, width), None if bias is None else torch.randn(bias))


CASES: dict[str, Callable[[], Tensor]] = {
    "a wider weight": product(24, 128),
    "a narrower weight": product(24, 16),
    "a wider weight, unrounded": lambda: ops.linear_wide(X, torch.randn(24, 128)),
    "a shorter bias": product(24, 32, 8),
    "a shorter norm": lambda: ops.rms(X, torch.ones(8), 1e-5),
    "a shorter layer norm": lambda: ops.layer(X, torch.ones(32), torch.ones(8), 1e-5),
    "other angles": lambda: ops.rotate(X.unflatten(-1, (4, 8)), (torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 4)), False),
}


@pytest.mark.parametrize("case", CASES)
def test_shapes_that_do_not_fit_are_refused(case: str) -> None:
    with torch.no_grad(), pytest.raises(RuntimeError):
        CASES[case]()


@pytest.mark.skipif(not native.available(), reason="no kernels here")
def test_without_the_check_a_product_reads_past_the_end() -> None:
    """The mutant, with a weight that is narrower, so that no memory is read that is not x's."""
    with torch.no_grad(), swapped(twins, "meets", lambda x, weight, bias: True):
        assert CASES["a narrower weight"]().shape == (2, 4, 24)


def test_angles_of_one_text_serve_a_batch() -> None:
    """What the reference broadcasts it computes."""
    x = X.unflatten(-1, (4, 8))
    with torch.no_grad():
        one = ops.rotate(x, (HALF, HALF), False)
        each = ops.rotate(x, (HALF.expand(2, -1, -1, -1).contiguous(), HALF.expand(2, -1, -1, -1).contiguous()), False)
    assert torch.allclose(one, each, atol=1e-6)
