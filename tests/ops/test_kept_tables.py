"""The native kernel writes its own scores and pattern where a watch keeps them: the reference's numbers, and z stays z to the bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import Mask, bidirectional, prefix
from pellucid.ops import native
from test_held import in_int8
from test_native import DTYPES, near, paged, rand
from test_native_rows import kernels, masks

reference = ops.attend.__globals__["attend_reference"]


def truth(q: Tensor, segment: Segment, mask: Mask, scale: float) -> tuple[Tensor, Tensor]:
    """Return the reference's scores and pattern, in float64."""
    kept: list[Tensor] = []
    own = ops.attend.__globals__
    taps = own["tap_scores"], own["tap_pattern"]
    own["tap_scores"], own["tap_pattern"] = (lambda x, *how: kept.append(x) or x for _ in range(2))  # type: ignore[func-returns-value]
    try:
        mask = replace(mask, sinks=None if mask.sinks is None else mask.sinks.double())
        k, v = (t.double() for t in segment.read())
        reference(q.double(), segment, mask, scale, (), (k, v))
    finally:
        own["tap_scores"], own["tap_pattern"] = taps
    return kept[0], kept[1]


def check(mask: Mask, dtype: torch.dtype, seen: int, rows: int, int8: bool = False, size: int = 3) -> native.KeptTables:
    """Compare the tables of one call with the reference's, and its z with that of a call without tables. Returns the tables."""
    q, segment = paged(dtype, seen, rows, 4, 2, 24, 9, size)
    segment = in_int8(segment) if int8 else segment
    at: Any = segment.paged
    tables = ops.attend.__globals__["empty_tables"](q, at)
    for t in (tables.scores, tables.pattern):
        t.fill_(float("nan"))  # every cell is written
    z = native.attend(q, at.pools, at.table, segment.q_at, size, 0.4, mask, at.end, tables)
    assert torch.equal(z, native.attend(q, at.pools, at.table, segment.q_at, size, 0.4, mask, at.end))
    scores, pattern = truth(q, segment, mask, 0.4)
    assert near(tables.scores, scores) and near(tables.pattern, pattern)
    assert torch.equal(tables.pattern == 0, tables.pattern.masked_fill(pattern == 0, 0) == 0)
    return tables


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", masks(torch.float32))
def test_tables_under_every_mask(name: str, dtype: torch.dtype) -> None:
    for seen, rows in ((1, 1), (17, 3), (130, 1), (301, 9)):
        check(masks(dtype)[name], dtype, seen, rows)


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tables_of_rows_that_see_ahead_and_of_int8(dtype: torch.dtype) -> None:
    for mask in (bidirectional, prefix(20)):
        check(mask, dtype, 33, 7)
    for name in ("causal", "all"):
        check(masks(dtype)[name], dtype, 70, 5, int8=True)


@kernels
def test_a_row_of_hidden_keys_has_scores_and_no_share() -> None:
    tables = check(masks(torch.float32)["window"], torch.float32, 17, 3)
    assert tables.pattern[0, :, 0, :10].eq(0).all() and tables.pattern[0, :, 0, 15:].eq(0).all()
    assert tables.scores.isfinite().all() and tables.scores[0, :, 0, 16].abs().min() > 0


@kernels
@pytest.mark.parametrize("wrong", ["another scale", "one row later", "another head", "a pattern that is not divided"])
def test_wrong_tables_are_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = native.attend

    def broken(q: Tensor, *how: Any) -> Tensor:
        z = real(q, *how)
        if len(how) > 7 and how[7] is not None:
            tables = how[7]
            if wrong == "another scale":
                tables.scores.mul_(1.01)
            elif wrong == "one row later":
                tables.scores.copy_(tables.scores.roll(1, -1))
            elif wrong == "another head":
                tables.pattern.copy_(tables.pattern.flip(1))
            else:
                tables.pattern.mul_(2)
        return z

    monkeypatch.setattr(native, "attend", broken)
    with pytest.raises(AssertionError):
        check(masks(torch.float32)["causal"], torch.float32, 17, 3)


@kernels
@pytest.mark.parametrize("rows", [1, 9])
def test_a_batch_is_shown_by_the_kernel_only_where_its_bits_are_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`again` gives nothing for a z that is not the kernel's: then the reference is shown beside, with its distance."""
    q, segment = paged(torch.float32, 40, rows, 4, 2, 24, 9, 3)
    mask = masks(torch.float32)["causal"]
    z, again = ops.attend(q, KVCache([segment]), mask, 0.4), ops.attend.__globals__["again"]
    assert again(q, z, segment, mask, 0.4) is not None
    assert again(q, z.nextafter(z + 1), segment, mask, 0.4) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_softmax_in_its_own_memory_has_the_same_bits(dtype: torch.dtype) -> None:
    """It is taken there only without gradients and in a wide dtype, and a row of hidden keys is NaN in both."""
    own = ops.attend.__globals__["softmax_of_own"]
    for columns in (1, 7, 64, 301):
        table = rand(1, 3, 9, columns, dtype=dtype, scale=4).masked_fill(torch.ones(9, columns).tril().bool().logical_not(), float("-inf"))
        table[0, 0, 0] = float("-inf")
        want, w = table.softmax(-1, dtype=torch.promote_types(dtype, torch.float32)), table.clone()
        got = own(w)
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(7), want.nan_to_num(7))
        assert (got.data_ptr() == w.data_ptr()) == (dtype is not torch.bfloat16)
        leaf = table.clone().requires_grad_()
        assert own(leaf).data_ptr() != leaf.data_ptr()
