"""Kernels of special kinds of attention: a latent cache, an encoder's memory, biases by distance, computed positions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Paged, PagedRows, ScatteredRows, Segment
from pellucid.batch.mask import Mask, bidirectional, causal, chunk, relative, window
from pellucid.config import Buckets, Dynamic, LongRope, Rope
from pellucid.ops import latent, native
from pellucid.ops.native import attention
from test_native import DTYPES, near, no_worse, paged, rand
from test_native_rows import truth
from tiny import swapped

REAL_BEND, REAL_WAVES = native.bend, native.waves
pytestmark = pytest.mark.skipif(not native.available(), reason="no kernels here")


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def latent_case(dtype: torch.dtype, seen: int, h: int, k: int, r: int, w: int, c: int, size: int = 3) -> tuple[Any, ...]:
    """Return one row over a request of `seen` tokens in shuffled pages: (q, q_rot, segment, up)."""
    table = torch.randperm(-(-seen // size) + 2, generator=torch.Generator().manual_seed(seen))
    pools = rand(len(table) * size, c, dtype=dtype), rand(len(table) * size, r, dtype=dtype, seed=1)
    slots, at = table[torch.arange(seen) // size] * size + torch.arange(seen) % size, torch.tensor([[seen - 1]])
    segment = Segment(0, slice(0, 1), at, lambda: torch.arange(seen)[None], lambda: tuple(p[slots][None] for p in pools), True,
                  Paged(pools, table, size, seen))  # fmt: skip
    up = rand(h, k + w, c, dtype=dtype, seed=2, scale=c**-0.5)
    q = rand(1, 1, h, k + r, dtype=dtype, seed=3)[..., :k]
    return q, rand(1, 1, h, r, dtype=dtype, seed=4), segment, up


def latents(dtype: torch.dtype) -> None:
    for mask in (causal, causal & window(7), causal & chunk(5)):
        for seen, sizes in ((1, (2, 3, 2, 5, 9)), (40, (4, 16, 8, 12, 20)), (130, (3, 33, 16, 40, 100))):
            q, q_rot, segment, up = latent_case(dtype, seen, *sizes)
            run = lambda: ops.attend_latent(q, q_rot, KVCache([segment]), up, mask, 0.3)  # noqa: E731
            low, shared = (t.double() for t in segment.read())
            up_k, up_v = up.split([q.shape[3], up.shape[1] - q.shape[3]], 1)
            grown = latent.with_shared(latent.grow(low, up_k.double()), shared), latent.grow(low, up_v.double())
            want = ops.attend.__globals__["attend_reference"](torch.cat([q, q_rot], -1).double(), segment, mask, 0.3, (), grown)
            with native.off():
                theirs = run()
            z = run()
            assert near(z, want, 2) and no_worse(z, theirs, want), (seen, sizes)
            a = PagedRows(segment.paged.pools, torch.stack([segment.paged.table] * 2), 3, segment.q_at.expand(1, 2).contiguous())
            two = ops.attend_latent(q.expand(1, 2, -1, -1), q_rot.repeat(1, 2, 1, 1), KVCache([], (), a), up, mask, 0.3)
            assert torch.equal(two, z.expand(1, 2, -1, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_latents_where_they_lie(dtype: torch.dtype) -> None:
    latents(dtype)


def memories(dtype: torch.dtype) -> None:
    """Return rows of two requests, each against its own encoder's rows."""
    kept = [(rand(1, s, 2, 24, dtype=dtype, seed=s), rand(1, s, 2, 9, dtype=dtype, seed=s + 1)) for s in (1, 37)]
    q, at = rand(1, 2, 4, 24, dtype=dtype), torch.tensor([[3, 5]])
    segments = [Segment(i, slice(i, i + 1), at[:, i : i + 1], lambda s=s: torch.arange(s[0].shape[1])[None], lambda s=s: s, memory=s)
              for i, s in enumerate(kept)]  # fmt: skip
    want = torch.cat([truth(q[:, i : i + 1], p, bidirectional, 0.4) for i, p in enumerate(segments)], 1)
    with native.off():
        theirs = ops.attend(q, KVCache(segments), bidirectional, 0.4)
    z = ops.attend(q, KVCache(segments), bidirectional, 0.4)
    assert near(z, want) and no_worse(z, theirs, want)
    places = torch.tensor([native.kv_address(s) for s in kept])
    assert torch.equal(ops.attend(q, KVCache(segments, kept[0], ScatteredRows(kept[0], places)), bidirectional, 0.4), z)
    assert native.cross_attend(q, kept[0], torch.tensor([[0, 0, 0]] * 2), 0.4).eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memories_of_two_requests(dtype: torch.dtype) -> None:
    memories(dtype)


def test_a_memory_with_padding_or_a_mask_has_no_kernel() -> None:
    k, v, q = (rand(1, n, 2, 8, dtype=torch.float32) for n in (5, 5, 1))
    assert native.fits_cross_attend(q, (k, v), bidirectional)
    for mask in (causal, bidirectional & window(3), replace(bidirectional, cap=1.0), bidirectional & Mask(lambda q, k: k > 0)):
        assert not native.fits_cross_attend(q, (k, v), mask)
    segment = Segment(0, slice(0, 1), torch.tensor([[0]]), lambda: torch.tensor([[-1, 0, 1, 2, 3]]), lambda: (k, v))
    assert near(ops.attend(q, KVCache([segment]), bidirectional, 0.4), truth(q, segment, bidirectional, 0.4))


def buckets(dtype: torch.dtype) -> None:
    for spec in (Buckets(8, 16, False), Buckets(32, 128, False), Buckets(32, 128, True)):
        mask = replace(causal, bias=relative(rand(spec.count, 4, dtype=dtype, seed=7), spec))
        for seen, rows in ((1, 1), (17, 3), (301, 9)):
            q, segment = paged(dtype, seen, rows, 4, 2, 24, 9, 3)
            z, want = (
                ops.attend(q, KVCache([segment]), mask, 0.4),
                truth(q, segment, replace(mask, bias=relative(mask.bias.table.double(), spec)), 0.4),
            )
            assert native.fits_attend(q, segment.paged.pools, segment.paged.table, segment.q_at, mask)
            with native.off():
                theirs = ops.attend(q, KVCache([segment]), mask, 0.4)
            assert near(z, want) and no_worse(z, theirs, want), (spec, seen)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_learned_biases(dtype: torch.dtype) -> None:
    buckets(dtype)


def waves(dtype: torch.dtype) -> None:
    at = torch.tensor([[0, 1, 77, 5000]])
    for width, how in ((1, ()), (8, ()), (9, ()), (512, ()), (512, (2, True)), (9, (0, True)), (8, (3, False))):
        with native.off():
            want = ops.sinusoids(at, width, dtype, *how)
        assert (ops.sinusoids(at, width, dtype, *how).double() - want.double()).abs().max() <= (1e-7 if dtype is torch.float32 else 4e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sinusoids(dtype: torch.dtype) -> None:
    waves(dtype)


def bends(dtype: torch.dtype) -> None:
    """Return each row's angles by its own text's length, on both sides of the border and far beyond."""
    at, totals = torch.tensor([[5, 31, 32, 400]]), torch.tensor([[32, 33, 40, 500]])
    pairs = tuple(1.0 + i / 3 for i in range(8)), tuple(2.0 + i * i for i in range(8))
    for scaling in (Dynamic(3.0, 32), LongRope(*pairs, 32, 1.2)):
        rope = Rope(16, scaling=scaling)
        got = ops.angles(at, rope, dtype, lambda: totals)
        want = ops.angles(at, rope, torch.float64, lambda: totals)
        with native.off():
            theirs = ops.angles(at, rope, dtype, lambda: totals)
        for a, b, c in zip(got, theirs, want, strict=True):
            assert no_worse(a, b.double(), c)
            assert a.shape == (1, 4, 1, 8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_frequencies_by_length(dtype: torch.dtype) -> None:
    bends(dtype)


def wrong_latent(change: Callable[..., Any]) -> Callable[..., Tensor]:
    real = native.attend_latent
    return lambda q, r, pools, ups, *how: real(*change(q, r, pools, ups), *how)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "check"),
    [
        (native, "attend_latent", wrong_latent(lambda q, r, p, u: (q, torch.zeros_like(r), p, u)), latents),
        (native, "attend_latent", wrong_latent(lambda q, r, p, u: (q.flip(2).contiguous(), r, p, u)), latents),
        (native, "attend_latent", wrong_latent(lambda q, r, p, u: (q, r, (p[0].flip(0).contiguous(), p[1]), u)), latents),
        (native, "attend_latent", wrong_latent(lambda q, r, p, u: (q, r, p, (u[0], u[1].roll(1, 0)))), latents),
        (native, "kv_address", lambda s: [s[0].data_ptr(), s[1].data_ptr(), max(1, s[0].shape[1] - 1)], memories),
        (native, "kv_address", lambda s: [s[0].data_ptr(), s[0].data_ptr(), s[0].shape[1]], memories),
        (attention, "around", lambda spec: torch.arange(2 * spec.reach + 1) % spec.count, buckets),
        (native, "bend", lambda totals, *how: REAL_BEND(totals.clamp(max=32), *how), bends),
        (native, "bend", lambda totals, *how: REAL_BEND(totals.flip(1).contiguous(), *how), bends),
        (native, "waves", lambda at, width, skip, over, dtype: torch.zeros(1, 4, width, dtype=dtype), waves),
        (native, "waves", lambda at, width, skip, over, dtype: REAL_WAVES(at, width, skip, width / 2, dtype), waves),
    ],
)
def test_the_checks_see_a_wrong_kernel(owner: Any, name: str, wrong: Any, check: Callable[[torch.dtype], None]) -> None:
    with swapped(owner, name, wrong), pytest.raises(AssertionError):
        check(torch.float32)
