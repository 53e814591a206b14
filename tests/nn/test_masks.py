"""Every way of computing one attention gives the same: the reference, torch's kernel, pages, and written out by hand."""

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.batch.kv_cache import Paged, Segment
from pellucid.batch.mask import Band, Mask, alibi, around, bidirectional, causal, chunk, document, prefix, relative, window
from pellucid.config import Attention, Buckets, Layer, Mlp
from pellucid.counting.bill import pairs
from pellucid.errors import UseError
from test_cross import EDGES
from tiny import far, law, swapped

attend = importlib.import_module("pellucid.ops.attend")  # the package names a function so
reference, sdpa, pages_pass = attend.attend_reference, attend.attend_sdpa, attend.attend_pages
H, G, K, W, S, B, SCALE = 4, 2, 8, 6, 9, 2, 0.3
FIRST = {"prompt": 0, "chunk": 3, "decode": S - 1}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def rows(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SLOPES, TABLE, SINKS = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64), rows(8, H, seed=1), rows(H, seed=2)
OF = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
NOTHING = causal & window(0)


def by_hand(first: int) -> dict[str, tuple[Mask, Tensor, Tensor | float]]:
    """Return each Mask with its table [T S] and its bias, for queries at first, first + 1, ..."""
    row, col = torch.arange(first, S)[:, None], torch.arange(S)[None]
    seen, back = col <= row, row - col
    buckets = sum((back.clamp(min=0) >= e).long() for e in EDGES[8, 16])
    slanted = -SLOPES[:, None, None] * back.abs()
    return {
        "causal": (causal, seen, 0.0),
        "both ways": (bidirectional, seen | True, 0.0),
        "prefix 5": (prefix(5), seen | (col < 5), 0.0),
        "window 3": (causal & window(3), seen & (back < 3), 0.0),
        "chunk 4": (causal & chunk(4), seen & (row // 4 == col // 4), 0.0),
        "document": (causal & document(OF), seen & (OF[row] == OF[col]), 0.0),
        "alibi": (replace(causal, bias=alibi(SLOPES)), seen, slanted),
        "buckets": (replace(causal, bias=relative(TABLE, Buckets(8, 16, False))), seen, TABLE[buckets].permute(2, 0, 1)),
        "cap": (replace(causal, cap=5.0), seen, 0.0),
        "sinks": (replace(causal, sinks=SINKS), seen, 0.0),
        "sinks, slopes, window": (replace(causal & window(2), bias=alibi(SLOPES), sinks=SINKS), seen & (back < 2), slanted),
        "nothing": (NOTHING, seen & False, 0.0),
        "nothing but a sink": (replace(NOTHING, sinks=SINKS), seen & False, 0.0),
    }


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Mask, allowed: Tensor, bias: Tensor | float) -> Tensor:
    """Return softmax(q k^T) v written out: q [B T H K], allowed [B 1 T S]."""
    s = torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(2, 2)) * SCALE
    s = (s if mask.cap is None else mask.cap * (s / mask.cap).tanh()) + bias
    e = torch.where(allowed, s.exp(), 0.0)
    below = e.sum(-1, keepdim=True) + (0 if mask.sinks is None else mask.sinks.exp()[:, None, None])
    return torch.einsum("bhts,bshk->bthk", (e / below).nan_to_num(0.0), v.repeat_interleave(2, 2))


def case(first: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(rows(B, n, heads, width, seed=3).to(dtype) for n, heads, width in ((S - first, H, K), (S, G, K), (S, G, W)))  # type: ignore


def a_segment(first: int, k: Tensor, v: Tensor, holes: Tensor | None = None, size: int = 0) -> Segment:
    """Return a segment over whole rows, over rows with padding, or over pages of a size in a shuffled order."""
    q_at = torch.arange(first, S).expand(len(k), -1)
    k_at = torch.arange(S).expand(len(k), -1) if holes is None else holes
    paged = None
    if size:
        table = torch.randperm(S, generator=torch.Generator().manual_seed(0))
        pools = tuple(t.new_full((S * size, *t.shape[2:]), 7.0) for t in (k, v))
        for pool, t in zip(pools, (k, v), strict=True):
            pool[torch.tensor([int(table[s // size]) * size + s % size for s in range(S)])] = t[0]
        paged = Paged(pools, table, size, S)
    return Segment(None, slice(None), q_at, lambda: k_at, lambda: (k, v), holes is None, paged)


def worst(ways: Any = ("reference", "sdpa", "pages", "op")) -> float:
    """Return the largest difference from z written out, over masks, chunks, padding and implementations."""
    gaps = [0.0]
    for first in FIRST.values():
        q, k, v = case(first)
        for mask, seen, bias in by_hand(first).values():
            for holes in (None, torch.where(torch.arange(S) < torch.tensor([[2], [5]]), -1, torch.arange(S))):
                allowed = (seen & (torch.arange(S) >= 0))[None, None] if holes is None else seen & (holes >= 0)[:, None, None]
                want, segment = attended(q, k, v, mask, allowed, bias), a_segment(first, k, v, holes)
                if "reference" in ways:
                    gaps.append(far(attend.attend_reference(q, segment, mask, SCALE), want))
                if "sdpa" in ways and mask.cap is None:
                    gaps.append(far(attend.attend_sdpa(q, k, v, segment, mask, SCALE), want))
                if "op" in ways:
                    gaps.append(far(attend.attend_one(q, segment, mask, SCALE, ()), want))
            for size in (1, 2, 4, 17) if "pages" in ways and mask.cap is None and first == S - 1 else ():
                want = attended(q[:1], k[:1], v[:1], mask, seen[None, None], bias)
                gaps.append(far(attend.attend_pages(q[:1], a_segment(first, k[:1], v[:1], size=size), mask, SCALE), want))
    return max(gaps)


def upper_left(q: Tensor, k: Tensor, v: Tensor, segment: Segment, mask: Mask, scale: float) -> Tensor:
    """Align is_causal to the upper left for a cached chunk, as a mutant."""
    plain = mask is causal and segment.contiguous
    return sdpa(q, k[:, : q.shape[1]], v[:, : q.shape[1]], segment, mask, scale) if plain else sdpa(q, k, v, segment, mask, scale)


def unshrunk(q: Tensor, segment: Segment, mask: Mask, scale: float) -> Tensor:
    """Average each page's own softmax without rescaling the running sum, as a mutant."""
    assert segment.paged is not None
    each = []
    for (k, v), at in segment.paged.blocks():
        block = Segment(None, slice(None), segment.q_at, lambda at=at: at, lambda k=k, v=v: (k[None], v[None]))
        each.append(reference(q, block, mask, scale))
    return torch.stack(each).mean(0)


def padding_seen(self: Mask, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor | None]:
    q, k = q_at[:, None, :, None], k_at[:, None, None, :]
    return self.allowed(q, k), None if self.bias is None else self.bias(q, k)


@law(
    1e-12,
    upper_left=(attend, "attend_sdpa", upper_left),
    unshrunk=(attend, "attend_pages", unshrunk),
    padding_seen=(Mask, "materialize", padding_seen),
    no_bias=(Mask, "materialize", lambda self, q, k, right=Mask.materialize: (right(self, q, k)[0], None)),
)
def test_26_twins_by_hand() -> float:
    """Twelve masks, as a prompt, a cached chunk and a decoding step, with and without padding, give reference = SDPA = pages = by hand."""
    return worst()


def test_a_row_that_sees_nothing_is_zero() -> None:
    """A fully masked row is 0, where a plain softmax gives NaN."""
    q, k, v = case(0)
    segment = a_segment(0, k, v)
    for twin in (attend.attend_reference(q, segment, NOTHING, SCALE), attend.attend_sdpa(q, k, v, segment, NOTHING, SCALE)):
        assert not twin.any() and twin.isfinite().all()
    last = attend.attend_pages(q[:1, -1:], a_segment(S - 1, k[:1], v[:1], size=4), NOTHING, SCALE)
    assert not last.any() and last.isfinite().all()
    assert torch.full((3,), -math.inf).softmax(-1).isnan().all()


def ratio(twin: str, dtype: torch.dtype) -> float:
    """Return an implementation's error against float64 over twice the reference's own in this dtype plus a tiny floor."""
    largest = 0.0
    for first in FIRST.values():
        q, k, v = case(first, dtype)
        truth = attended(
            *(t.double() for t in (q, k, v)), causal, (torch.arange(S)[None] <= torch.arange(first, S)[:, None])[None, None], 0.0
        )
        plain = far(attend.attend_reference(q, a_segment(first, k, v), causal, SCALE), truth)
        if twin == "sdpa":
            got = attend.attend_sdpa(q, k, v, a_segment(first, k, v), causal, SCALE)
        else:
            each = [a_segment(first, k[b : b + 1], v[b : b + 1], size=4) for b in range(B)]
            got = torch.cat([attend.attend_one(q[b : b + 1], p, causal, SCALE, ()) for b, p in enumerate(each)])
        assert got.dtype == dtype
        largest = max(largest, far(got, truth) / (2 * plain + 2 * torch.finfo(dtype).eps))
    return largest


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("twin", ["sdpa", "pages"])
def test_26_twins_in_every_dtype(twin: str, dtype: torch.dtype) -> None:
    """The ratio is at most 1 in every dtype; over pages, whatever kernel fits."""
    with torch.no_grad():
        assert ratio(twin, dtype) <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_26_a_twin_that_is_off_mutant(dtype: torch.dtype) -> None:
    with swapped(attend, "attend_sdpa", lambda *a: sdpa(*a) * 1.05):
        assert ratio("sdpa", dtype) > 1


def test_a_mask_that_changes_scores_is_not_joined() -> None:
    """`&` joins what is visible; a bias, a cap or sinks on its right side would be lost, and are refused."""
    for changed in (replace(bidirectional, cap=5.0), replace(causal, bias=alibi([0.5]))):
        assert (changed & causal).allowed == Band(causal=True) and (changed & causal).cap == changed.cap
        with pytest.raises(UseError, match="replace"):
            causal & changed


def test_a_window_around_a_token() -> None:
    """It reaches as far ahead as back, joins no window of another kind in one band, and its pairs are counted in closed form."""
    at = torch.arange(9)
    away = (at[:, None] - at).abs()
    assert torch.equal(around(3).allowed(at[:, None], at), away < 3)
    assert (bidirectional & around(5) & around(3)).allowed == Band(window=3, around=True)
    both = (around(5) & window(3)).allowed
    assert not isinstance(both, Band) and torch.equal(both(at[:, None], at), (away < 5) & (at[:, None] - at < 3))
    assert Band(window=3, around=True).conditions() == "|t − s| < 3"
    layer = Layer(Attention(2, 2, 8, causal=False, window=3), Mlp(16))
    for rows in (1, 2, 4, 9):
        assert pairs(layer, rows, 0, bidirectional=True) == int((away[:rows, :rows] < 3).sum())
