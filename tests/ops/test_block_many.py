"""Many rows and weights in blocks, in the tiles of bf16: the bits of both factors' rounded values, and less than half of int8's error."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.blocks import BITS, Blocks, quantised
from pellucid.ops.native import quantised as twins
from pellucid.ops.native.quantised import BLOCK_ROWS, many_rows
from test_native import DTYPES, rand
from test_native_sets import forced
from tiny import swapped

ROWS = (BLOCK_ROWS + 1, 130, 600)  # one group more than few, an even end, and two pieces
SHAPES = ((1, 1), (31, 31), (33, 32), (64, 33), (65, 255), (130, 256), (257, 289), (96, 897))  # n, k: of one block of k, and of several
Product = Callable[[Tensor, Blocks, Tensor | None], Tensor]


@pytest.fixture(autouse=True)
def tiles() -> Iterator[None]:
    with forced("amx_bf16"), torch.no_grad():
        yield


def of_values(x: Tensor, w: Blocks, bias: Tensor | None) -> Tensor:
    """Multiply both factors rounded to bf16 as weights that are not in blocks."""
    y = native.linear_wide(x.bfloat16(), w.plain(torch.float32).bfloat16(), None)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def check(product: Product, form: str, dtype: torch.dtype) -> None:
    """Assert that products have the bits of the values' own, beside a row that is not finite."""
    for n, k in SHAPES:
        w, b = quantised(rand(n, k, dtype=torch.float32, seed=n), form, dtype), rand(n, dtype=dtype, seed=2)
        x = rand(max(ROWS), k, dtype=dtype, seed=k)
        x[5] = torch.nan
        for rows in ROWS:
            for bias in (b, None):
                want = of_values(x[:rows], w, bias)
                assert torch.equal(product(x[:rows], w, bias).nan_to_num(), want.nan_to_num()), (n, k, rows)


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_the_values(form: str, dtype: torch.dtype) -> None:
    check(twins.linear_blocks, form, dtype)


def in_int8(f: Product) -> Product:
    """Multiply as few rows are."""

    def product(x: Tensor, w: Blocks, b: Tensor | None) -> Tensor:
        with swapped(twins, "many_rows", lambda x: False):
            return f(x, w, b)

    return product


@pytest.mark.parametrize(
    "wrong",
    [
        lambda f: lambda x, w, b: f(x, w.like(w.codes.roll(1, 1), w.scales), b),
        lambda f: lambda x, w, b: f(x, w.like(w.codes, w.scales.roll(1, 1)), b),
        lambda f: lambda x, w, b: f(x, w.like(w.codes, w.scales.roll(1, 0)), b),
        lambda f: lambda x, w, b: f(x.roll(1, 0), w, b),
        lambda f: lambda x, w, b: f(x, w, None),
        in_int8,
    ],
    ids=["codes", "scales of a row", "scales of rows", "x", "bias", "rounded to int8"],
)
@pytest.mark.parametrize("form", BITS)
def test_other_products_are_seen(form: str, wrong: Callable[[Product], Product]) -> None:
    with pytest.raises(AssertionError):
        check(wrong(twins.linear_blocks), form, torch.float32)


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_error_is_less_than_half_of_int8_s(form: str, dtype: torch.dtype) -> None:
    """Each cell lies within the bound of x in int8, and their errors together within half of its."""
    x, w = rand(300, 640, dtype=dtype), quantised(rand(70, 640, dtype=torch.float32, seed=1), form, torch.float32)
    w = w.like(w.codes, w.scales, dtype)
    values = w.plain(torch.float64)
    truth = x.double() @ values.T
    blocks = x.double().unflatten(1, (-1, 32)).abs().amax(-1) / 254
    bound = blocks @ values.unflatten(1, (-1, 32)).abs().sum(-1).T + truth.abs() * (2.0**-9 if dtype is torch.bfloat16 else 2.0**-20)
    y = twins.linear_blocks(x, w, None).double()
    assert ((y - truth).abs() <= bound).all()
    with native.any_rows():
        assert not many_rows(x)
        int8 = twins.linear_blocks(x, w, None).double()
    if dtype is torch.float32:  # bf16 rounds y, which hides it
        assert 0 < (y - truth).pow(2).mean().sqrt() < 0.5 * (int8 - truth).pow(2).mean().sqrt()


@pytest.mark.parametrize("form", BITS)
def test_a_row_keeps_its_bits_where_they_are_promised(form: str) -> None:
    """In any_rows(), as a deterministic engine runs, a row has the bits that it has alone, as few rows always have."""
    x, w = rand(90, 96, dtype=torch.float32), quantised(rand(40, 96, dtype=torch.float32, seed=1), form, torch.float32)
    alone = torch.cat([twins.linear_blocks(row[None], w, None) for row in x])
    with native.any_rows():
        assert torch.equal(twins.linear_blocks(x, w, None), alone)
    assert not torch.equal(twins.linear_blocks(x, w, None), alone)
    assert torch.equal(twins.linear_blocks(x[:BLOCK_ROWS], w, None), alone[:BLOCK_ROWS])
