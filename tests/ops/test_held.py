"""Keys and values in int8: the kernels round as torch does, to the bit, and attend to what is held as float64 does."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Paged, PagedRows, Segment
from pellucid.ops import native
from pellucid.ops.held import INT8, from_int8, to_int8
from test_native import DTYPES, near, paged, rand
from test_native_rows import kernels, masks, truth


def test_half_a_step_is_the_most_that_a_number_moves() -> None:
    """In float64: the largest number of a head stays, others move by at most half of a 127th of it."""
    x = rand(9, 3, 24, dtype=torch.float64)
    back = from_int8(*to_int8(x))
    largest = x.abs().amax(-1, keepdim=True)
    assert ((back - x).abs() <= largest / 254 * (1 + 1e-12)).all() and 1e-3 < (back - x).abs().max() < 0.02
    assert torch.allclose(back.abs().amax(-1, keepdim=True), largest, rtol=1e-15)
    coarse = from_int8(*to_int8(x.round(decimals=1)))  # a mutant that rounds twice
    assert not ((coarse - x).abs() <= largest / 254 * (1 + 1e-12)).all()


def odd_rows(dtype: torch.dtype) -> Tensor:
    """Return rows with zeros, the least numbers, halves of a step, huge ones, NaN and infinity, [1 T G K]."""
    x = rand(1, 9, 2, 37, dtype=dtype, scale=3)
    x[0, 0] = 0.0
    x[0, 1] = torch.finfo(dtype).smallest_normal
    x[0, 2] = torch.linspace(-127, 127, 37).to(dtype) / 2
    x[0, 3] = torch.finfo(dtype).max
    x[0, 4, 0, 5], x[0, 5, 1, 36] = math.nan, math.inf
    x[0, 6] = torch.finfo(dtype).smallest_normal / 128
    return x


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_round_as_torch_does(dtype: torch.dtype) -> None:
    x, slots = odd_rows(dtype), torch.tensor([4, 0, 9, 2, 11, 7, 1, 3, 10])
    ours, theirs = (INT8.pools((x,), 12) for _ in range(2))
    INT8.write(ours, slots, (x,))
    with native.off():
        INT8.write(theirs, slots, (x,))
        (want,) = INT8.read(theirs, slots)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1].nan_to_num(7.0), theirs[1].nan_to_num(7.0))
    (back,) = INT8.read(ours, slots)
    assert torch.equal(back.isnan(), want.isnan()) and torch.equal(back.nan_to_num(7.0), want.nan_to_num(7.0))
    assert back[4, 0].isnan().all() and not back[4, 1].isnan().any() and back[5, 1].isnan().all()  # a NaN is not lost
    assert not torch.equal(INT8.read(ours, slots.flip(0))[0].nan_to_num(7.0), want.nan_to_num(7.0))


def in_int8(segment: Any) -> Segment:
    """Return the same segment with its pages in int8."""
    at = segment.paged
    pools = INT8.pools(tuple(p[None] for p in at.pools), len(at.pools[0]))
    INT8.write(pools, torch.arange(len(at.pools[0])), tuple(p[None] for p in at.pools))
    slots = at.table[torch.arange(at.end) // at.size] * at.size + torch.arange(at.end) % at.size
    place = Paged(pools, at.table, at.size, at.end, at.start, INT8)
    read = lambda: tuple(rows[None] for rows in INT8.read(pools, slots))  # noqa: E731
    return Segment(segment.request, segment.rows, segment.q_at, lambda: segment.k_at, read, segment.contiguous, place)


def check(name: str, dtype: torch.dtype, size: int = 3) -> None:
    mask = masks(dtype)[name]
    for seen, rows in ((1, 1), (17, 3), (130, 1), (301, 9)):
        q, plain = paged(dtype, seen, rows, 4, 2, 24, 9, size)
        segment = in_int8(plain)
        at = segment.paged
        assert at is not None and native.fits_attend(q, at.pools, at.table, segment.q_at, mask)
        z, want = ops.attend(q, KVCache([segment]), mask, 0.4), truth(q, segment, mask, 0.4)
        assert near(z, want), (name, seen, rows)
        with native.off():
            assert near(ops.attend(q, KVCache([segment]), mask, 0.4), want, 4), (name, seen, rows)
        single = native.attend(q[:, -1:], at.pools, at.table, segment.q_at[:, -1:].contiguous(), size, 0.4, mask)
        assert torch.equal(single, z[:, -1:])


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["causal", "window", "chunk and window", "all"])
def test_attention_to_what_is_held(name: str, dtype: torch.dtype) -> None:
    check(name, dtype)


Pools = tuple[Tensor, ...]


@kernels
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda p: (*p[:2], p[2].roll(1, 1), p[3]), id="another head's scales"),
        pytest.param(lambda p: (*p[:2], p[3], p[2]), id="the values' scales"),
        pytest.param(lambda p: (*p[:3], p[3] * 1.01), id="values a hundredth larger"),
        pytest.param(lambda p: (p[0].neg(), *p[1:]), id="negative keys"),
    ],
)
def test_wrong_scales_are_seen(wrong: Callable[[Pools], Pools], monkeypatch: pytest.MonkeyPatch) -> None:
    real = native.attend
    monkeypatch.setattr(native, "attend", lambda q, pools, *how: real(q, wrong(pools), *how))
    with pytest.raises(AssertionError):
        check("causal", torch.float32)


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_several_requests_in_one_call(dtype: torch.dtype) -> None:
    """Rows under tables of their own give the bits of one call a request, and are stored and read under them."""
    x = rand(1, 60, 2, 24, dtype=dtype), rand(1, 60, 2, 9, dtype=dtype, seed=1)
    pools = INT8.pools(x, 60)
    INT8.write(pools, torch.arange(60), x)
    q, at = rand(1, 4, 4, 24, dtype=dtype, seed=2), torch.tensor([[13, 0, -1, 29]])
    tables = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(i))[:10] for i in range(4)])
    mask = masks(dtype)["sinks, window"]
    z = native.attend(q, pools, tables, at, 3, 0.4, mask)
    for r in (0, 1, 3):
        one = at[:, r : r + 1].contiguous()
        assert torch.equal(native.attend(q[:, r : r + 1], pools, tables[r], one, 3, 0.4, mask), z[:, r : r + 1])
        native.store(x[0][:, :1], INT8.places(pools)[0], tables[r], one, 3)
        assert torch.equal(native.held_int8(INT8.places(pools)[0], tables[r], one, 3)[0], from_int8(*to_int8(x[0][0, :1])))
    assert z[:, 2].eq(0).all()
    assert torch.equal(
        ops.attend(q, KVCache([], (q,), PagedRows(pools, tables, 3, at)), replace(mask), 0.4),
        native.attend(q, pools, tables, at, 3, 0.4, mask),
    )
