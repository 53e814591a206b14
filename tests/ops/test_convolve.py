"""The short convolution by hand, from a plain batch, from padding and from pages; the kernel, and what is stored of a text."""

from typing import Any

import pytest
import torch
from torch import Tensor

from judge import judge
from pellucid import config as c
from pellucid import ops
from pellucid.api.model import load
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine.determinism import reason
from pellucid.nn.short_conv import ShortConv
from pellucid.ops import native
from pellucid.ops.native import twins
from pellucid.watching.watch import watch
from test_plan import needs_kernels
from tiny import GPT2

J, D, T = 4, 40, 11


def part(dtype: torch.dtype = torch.float64, bias: bool = True) -> ShortConv:
    """Return a random convolution of J rows of D channels."""
    cfg = c.Config(7, D, GPT2.layers)
    made, draw = ShortConv(cfg, c.ShortConv(J, bias)).to(dtype), torch.Generator().manual_seed(5)
    for p in made.parameters():
        p.data = (torch.randn(p.shape, generator=draw) * 0.3).to(dtype)
    return made


def rows(count: int = T, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(1, count, D, generator=torch.Generator().manual_seed(6)).to(dtype)


def by_hand(x: Tensor, made: ShortConv) -> Tensor:
    """Return the sums number by number; rows before the text are left out."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for d in range(D):
            last = [float(made.kernel[j, d]) * float(x[0, t - J + 1 + j, d]) for j in range(J) if t - J + 1 + j >= 0]
            y[0, t, d] = sum(last) + (0.0 if made.kernel_bias is None else float(made.kernel_bias[d]))
    return y


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_each_channel_sums_its_last_rows(bias: bool) -> None:
    made = part(bias=bias)
    with watch(made, terms=True) as seen:
        made(rows(), Step.plain(torch.zeros(1, T, dtype=torch.long)))
    z, want = seen["z"], by_hand(seen["gated"].value, made)
    assert float((z.value - want).abs().max()) < 1e-12 and z.op == "convolve"
    for cell in ((0, 0, 3), (0, 2, 0), (0, 10, 39)):
        assert z.terms is not None and abs(z.terms(cell).total() - float(want[cell])) < 1e-12
    made.kernel.data = made.kernel.data.flip(0)  # the mutant: the numbers in another order
    assert float((by_hand(seen["gated"].value, made) - want).abs().max()) > 0.1


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
def test_padding_is_no_row_of_a_text(left: bool) -> None:
    made, x = part(), rows()
    alone = made(x, Step.plain(torch.zeros(1, T, dtype=torch.long)))
    for waste in (1, 3):
        junk = torch.full((1, waste, D), 9.0, dtype=x.dtype)
        real = torch.cat([torch.full((1, waste), not left), torch.ones(1, T) if left else torch.zeros(1, 0)], 1)
        real = real if left else torch.cat([torch.ones(1, T), torch.zeros(1, waste)], 1)
        step = Step.plain(torch.zeros(1, T + waste, dtype=torch.long), real)
        y = made(torch.cat([junk, x] if left else [x, junk], 1), step)
        assert float(((y[:, waste:] if left else y[:, :T]) - alone).abs().max()) < 1e-12


def in_pages(made: ShortConv, x: Tensor, chunks: list[int], size: int) -> Tensor:
    """Return what the part makes of x in these chunks, from pages that are given back behind the window."""
    pages, out, at = PagedCache(0, size, {J: 8}, longest=64), [], 0
    for n in chunks:
        step = Step.paged(pages, {"a": n})
        out.append(made(x[:, at : at + n], step))
        step.advance()
        at += n
        assert len(pages.allocators[J].allocated["a"]) <= -(-J // size) + 1
    return torch.cat(out, 1)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_chunks_give_what_one_forward_gives(dtype: torch.dtype) -> None:
    """Only the last J rows of a text are kept, and they are enough."""
    made, x = part(dtype), rows(dtype=dtype)
    with native.any_rows():
        complete = made(x, Step.plain(torch.zeros(1, T, dtype=torch.long)))
        for chunks in ([1] * T, [3, 1, 5, 2], [7, 4]):
            for size in (1, 3, 16):
                got = in_pages(made, x, chunks, size)
                gap = float((got.double() - complete.double()).abs().max())
                assert gap < {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.5}[dtype]


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_is_the_reference(dtype: torch.dtype, bias: bool) -> None:
    """For every number of rows, to the bit."""
    made, draw = part(dtype, bias), torch.Generator().manual_seed(7)
    pool = torch.randn(48, D, generator=draw).to(dtype)
    table = torch.tensor([3, 0, 2, 1])
    for first, count in ((0, 1), (0, 5), (2, 1), (9, 16), (47, 1)):
        at = torch.arange(first, first + count)
        stored = torch.cat([pool[12 * int(p) : 12 * int(p) + 12] for p in table])
        padded = torch.cat([torch.zeros(J - 1, D), stored.float()])
        want = torch.zeros(count, D) if made.kernel_bias is None else made.kernel_bias.float().expand(count, D)
        for j in range(J):
            want = want + padded[at + j] * made.kernel[j].float()
        at = at[at < 48]
        got = native.convolve(pool, table, at[None], 12, made.kernel, made.kernel_bias)
        assert torch.equal(got[0], want[: len(at)].to(dtype))


@torch.no_grad()
def test_a_row_has_its_bits_in_any_batch() -> None:
    """An engine may promise it, and a kernel that takes the wrong row is seen."""
    model = load(judge("lfm2").folder, dtype="float32").module
    assert reason(model) is None
    right = native.convolve

    def wrong(pool: Tensor, table: Tensor, positions: Tensor, *how: Any) -> Tensor:
        return right(pool, table, positions if positions.numel() > 1 else (positions - 1).clamp(min=0), *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "convolve", wrong)
        assert reason(model) is not None


@torch.no_grad()
def test_products_number_by_number() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        a, b = rows(5, dtype), rows(6, dtype)[:, 1:].contiguous()
        assert torch.equal(ops.times(a, b), a * b) and (not native.available() or torch.equal(twins.times(a, b), a * b))
