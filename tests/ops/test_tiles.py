"""Products of bf16 in each instruction set: each column of y is of its own row of w, whichever rows make a tile."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from test_native_sets import each_set, forced

MANY = (17, 33, 49, 64, 65, 130, 600)  # rows: two, three and four groups of sixteen, odd and even numbers of more, two pieces
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


@pytest.mark.parametrize("k", [40, 256, 288, 897])  # blocks of k: one, a whole one, two of another size, and an odd end
@each_set
def test_a_row_has_its_bits_among_any_number(name: str, k: int) -> None:
    with forced(name):
        for n in (1, 31, 130, 257):
            check_many(product, n, k)


def check_many(product: Callable[[Tensor, Tensor, Tensor], Tensor], n: int, k: int) -> None:
    """Assert that each row has the bits that it has among 16, in any larger number of rows."""
    torch.manual_seed(n + k)
    x, w, bias = torch.randn(max(MANY), k).bfloat16(), torch.randn(n, k).bfloat16(), torch.randn(n).bfloat16()
    few = torch.cat([product(some.contiguous(), w, bias) for some in x.split(16)])
    for rows in MANY:
        assert torch.equal(product(x[:rows].contiguous(), w, bias), few[:rows]), (n, k, rows)


@each_set
def test_sums_without_an_earlier_block_of_k_are_seen(name: str) -> None:
    def wrong(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return product(x, w, bias) if len(x) <= 64 else product(x[:, 160:].contiguous(), w[:, 160:].contiguous(), bias)

    with forced(name), pytest.raises(AssertionError):
        check_many(wrong, 130, 288)


@each_set
def test_columns_in_the_order_of_tiles_are_seen(name: str) -> None:
    """With rows 8 apart, cells that are written as they lie in the tiles."""

    def wrong(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = product(x, w, bias)
        return y if len(x) > 16 else y.unflatten(1, (32, 8)).mT.flatten(1)

    with forced(name), pytest.raises(AssertionError):
        check(wrong, 256, 32)
