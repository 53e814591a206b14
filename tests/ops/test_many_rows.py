"""Attention of many rows of one text: each has the bits that it has alone, under every mask, in each instruction set, tables or not."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import Mask, bidirectional, causal, prefix
from pellucid.ops import native
from pellucid.ops.native import make, twins
from test_held import in_int8
from test_kept_tables import check as check_tables
from test_native import DTYPES, near, paged
from test_native_rows import kernels, masks, truth
from test_native_sets import forced
from tiny import swapped

attend_module = sys.modules["pellucid.ops.attend"]
SHAPES = ((4, 2, 24, 9, 3), (4, 4, 64, 64, 16), (4, 1, 33, 130, 1), (4, 4, 129, 17, 7))  # heads, groups, key, value, rows a page
TEXTS = ((4, 4), (50, 50), (301, 9), (301, 130))  # tokens, rows


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def every_mask(dtype: torch.dtype) -> dict[str, Mask]:
    return masks(dtype) | {"bidirectional": bidirectional, "prefix": prefix(20)}


def attended(q: Tensor, segment: Segment, mask: Mask, rows: slice = slice(None)) -> Tensor:
    """Attend from some of the rows in one call of the kernel."""
    at = segment.paged
    assert at is not None
    return native.attend(q[:, rows], at.pools, at.table, segment.q_at[:, rows].contiguous(), at.size, 0.4, mask, at.end)


def check_rows(mask: Mask, dtype: torch.dtype, shape: tuple[int, ...], int8: bool, texts: Sequence[tuple[int, int]] = TEXTS) -> None:
    """Assert that rows have the bits of lone ones, and of those of another chunk. texts: their tokens, and the last rows of them."""
    for seen, rows in texts:
        q, segment = paged(dtype, seen, rows, *shape)
        segment = in_int8(segment) if int8 else segment
        z, some = attended(q, segment, mask), sorted({0, rows // 2, rows - 2, rows - 1})
        for r in some:
            assert torch.equal(attended(q, segment, mask, slice(r, r + 1)), z[:, r : r + 1]), (seen, rows, r)
        chunks = [attended(q, segment, mask, s) for s in (slice(rows // 3), slice(rows // 3, None))]
        assert torch.equal(torch.cat(chunks, 1), z), (seen, rows)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", make.FLAGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("int8", [False, True], ids=["plain", "int8"])
def test_a_row_has_the_same_bits_alone_and_among_many(name: str, dtype: torch.dtype, int8: bool) -> None:
    with forced(name), native.any_rows():
        for i, mask in enumerate(every_mask(dtype).values()):
            check_rows(mask, dtype, SHAPES[i % len(SHAPES)], int8)


@kernels
def test_rows_that_see_a_key_more_are_seen() -> None:
    """The mutant is a kernel of many rows by which each sees one key more, as an edge of a tile might."""
    real = native.attend

    def wrong(q: Tensor, pools: tuple[Tensor, ...], table: Tensor, at: Tensor, *how: Any) -> Tensor:
        return real(q, pools, table, at - 1 if at.shape[1] > 3 else at, *how)

    with swapped(native, "attend", wrong), pytest.raises(AssertionError):
        check_rows(causal, torch.float32, SHAPES[0], False)


@kernels
@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", every_mask(torch.float32))
def test_many_rows_against_float64(name: str, dtype: torch.dtype) -> None:
    """z, and the tables that a watch keeps, which leave z as it is."""
    mask = every_mask(dtype)[name]
    for seen, rows in ((60, 60), (301, 40)):
        q, segment = paged(dtype, seen, rows, 4, 2, 24, 9, 3)
        assert near(attended(q, segment, mask), truth(q, segment, mask, 0.4), 2), (seen, rows)
        check_tables(mask, dtype, seen, rows)


@kernels
def test_a_prompt_in_float32_runs_by_the_kernel() -> None:
    """Also without pages, where it has the bits of a prompt in pages; bf16 does where torch's own is slow."""
    called, real = list[int](), native.attend

    def spy(q: Tensor, *how: Any) -> Tensor:
        called.append(q.shape[1])
        return real(q, *how)

    q, segment = paged(torch.float32, 70, 70, 4, 2, 24, 9, 3)
    plain = Segment(0, slice(0, 70), segment.q_at, lambda: segment.k_at, segment.read, True)
    with swapped(native, "attend", spy):
        both = [ops.attend(q, KVCache([s]), causal, 0.4) for s in (segment, plain)]
        assert called == [70, 70] and torch.equal(*both)
    with native.off():
        assert not native.fits_attend(q, plain.read(), torch.zeros(1, dtype=torch.long), segment.q_at, causal)
    half = q.bfloat16()
    assert native.attends_any(q) and native.attends_any(half) == native.leads(half.dtype)
    with native.any_rows():
        assert native.attends_any(half) != twins.BF16_IS_FAST
    assert not native.attends_any(q.double())


@kernels
def test_positions_in_any_order() -> None:
    """A row at position -1 gives 0, and rows need not stand in order."""
    q, segment = paged(torch.float32, 90, 90, 4, 2, 24, 9, 3)
    at = segment.paged
    assert at is not None
    order = torch.randperm(90, generator=torch.Generator().manual_seed(3))
    mixed, lost = segment.q_at[:, order], segment.q_at.clone()
    z, lost[0, 5] = attended(q, segment, causal), -1
    how = at.size, 0.4, causal, at.end
    assert torch.equal(native.attend(q[:, order].contiguous(), at.pools, at.table, mixed, *how), z[:, order])
    again = native.attend(q, at.pools, at.table, lost, *how)
    assert again[:, 5].eq(0).all() and torch.equal(again[:, 6:], z[:, 6:])


@kernels
def test_what_a_row_does_not_see_may_be_broken() -> None:
    """NaN in later keys and values reach no earlier row of the same tile."""
    q, segment = paged(torch.float32, 40, 40, 4, 2, 24, 9, 1)
    at = segment.paged
    assert at is not None
    z = attended(q, segment, causal)
    for pool in at.pools:
        pool[at.table[23:40]] = float("nan")
    broken = attended(q, segment, causal)
    assert torch.equal(broken[:, :23], z[:, :23]) and broken[:, 23:].isnan().all()


@pytest.mark.parametrize("rows", [5, 40])
def test_rows_that_do_not_begin_at_0_are_no_page(rows: int) -> None:
    """The kernel finds keys by their positions: those of a text that was moved on would lie behind its page."""
    q, new = torch.randn(1, rows, 4, 16), (torch.randn(1, rows, 2, 16), torch.randn(1, rows, 2, 16))

    def answer(at: Tensor) -> tuple[Tensor, bool]:
        segment = Segment(None, slice(None), at[None], lambda: at[None], lambda: new, True)
        return ops.attend(q, KVCache([segment], new), causal, 0.4), attend_module.native_pages(q, segment, causal) is not None

    here, by_page = answer(torch.arange(rows))
    moved, moved_by_page = answer(torch.arange(rows) + 100)
    assert by_page and not moved_by_page and torch.allclose(here, moved, atol=1e-6)
