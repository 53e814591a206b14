"""Products of bf16 in each instruction set: each column of y is of its own row of w, whichever rows make a tile."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from test_native_sets import each_set, forced

COLUMNS = (1, 31, 33, 64, 65, 96, 129, 255, 256, 257, 300, 513, 4864)  # of pieces with rows 1, 2, 4 and 8 apart, whole and cut
WIDTHS = (32, 40, 128, 897)


def product(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    with torch.no_grad(), native.any_rows():
        return native.linear(x[None], w, bias)[0]


def check(product: Callable[[Tensor, Tensor, Tensor], Tensor], n: int, k: int) -> None:
    """Assert that rows among 40 have the bits of few, which read w in another order, and float64's numbers up to the rounding of bf16."""
    torch.manual_seed(n + k)
    x, w, bias = torch.randn(40, k).bfloat16(), torch.randn(n, k).bfloat16(), torch.randn(n).bfloat16()
    y = product(x, w, bias)
    truth = x.double() @ w.double().T + bias.double()
    assert (y.double() - truth).abs().max() <= 2**-8 * truth.abs().max()
    for rows in (1, 5, 16):
        assert torch.equal(product(x[:rows].contiguous(), w, bias), y[:rows]), (n, k, rows)


@pytest.mark.parametrize("k", WIDTHS)
@each_set
def test_columns_are_of_their_rows_of_w(name: str, k: int) -> None:
    with forced(name):
        for n in COLUMNS:
            check(product, n, k)


@each_set
def test_columns_in_the_order_of_tiles_are_seen(name: str) -> None:
    """With rows 8 apart, cells that are written as they lie in the tiles."""

    def wrong(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = product(x, w, bias)
        return y if len(x) > 16 else y.unflatten(1, (32, 8)).mT.flatten(1)

    with forced(name), pytest.raises(AssertionError):
        check(wrong, 256, 32)
