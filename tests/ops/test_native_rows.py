"""The small kernels of single families, and attention under every mask of plain data, against float64 and torch."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, PagedRows
from pellucid.batch.mask import Band, Mask, alibi, bidirectional, causal, chunk, prefix, window
from pellucid.config import Alibi, Temper
from pellucid.ops import native
from pellucid.ops.native import twins
from test_native import DTYPES, WIDTHS, near, no_worse, paged, rand

SINKS, SLOPES = [0.5, -3.0, 2.0, 0.0], [0.7, 0.1, 2.0, 0.02]


def masks(dtype: torch.dtype) -> dict[str, Mask]:
    sinks = torch.tensor(SINKS, dtype=dtype)
    return {
        "causal": causal,
        "window": causal & window(5),
        "window of one": window(1) & causal,
        "two windows": causal & window(40) & window(9),
        "chunk": causal & chunk(7),
        "chunk and window": causal & chunk(16) & window(6),
        "sinks": replace(causal, sinks=sinks),
        "sinks, window": replace(causal & window(3), sinks=sinks),
        "cap": replace(causal, cap=1.5),
        "slopes": replace(causal, bias=alibi(SLOPES)),
        "slopes, rounded": replace(causal, bias=alibi(SLOPES, Alibi(0.03, True))),
        "all": replace(causal & window(20), bias=alibi(SLOPES, Alibi(0.5)), sinks=sinks, cap=2.0),
    }


def truth(q: Tensor, segment: Any, mask: Mask, scale: float) -> Tensor:
    """Return attention in float64, by the mask's functions."""
    mask = replace(mask, sinks=None if mask.sinks is None else mask.sinks.double())
    k, v = (t.double() for t in segment.read())
    return ops.attend.__globals__["attend_reference"](q.double(), segment, mask, scale, (), (k, v))


def check(name: str, dtype: torch.dtype, heads: int = 4, groups: int = 2, key: int = 24, value: int = 9, size: int = 3) -> None:
    mask = masks(dtype)[name]
    for seen, rows in ((1, 1), (16, 16), (17, 3), (130, 1), (301, 9)):
        q, segment = paged(dtype, seen, rows, heads, groups, key, value, size)
        paged_at = segment.paged
        assert native.fits_attend(q, paged_at.pools, paged_at.table, segment.q_at, mask)
        z, want = ops.attend(q, KVCache([segment]), mask, 0.4), truth(q, segment, mask, 0.4)
        with native.off():
            theirs = ops.attend(q, KVCache([segment]), mask, 0.4)
        assert near(z, want) and no_worse(z, theirs, want), (name, seen, rows)
        single = native.attend(q[:, -1:], paged_at.pools, paged_at.table, segment.q_at[:, -1:].contiguous(), size, 0.4, mask)
        assert torch.equal(single, z[:, -1:])


def kernels(test: Callable[..., None]) -> Callable[..., None]:
    return test if native.available() else pytest.mark.skip("no kernels here")(test)


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", masks(torch.float32))
def test_attention_under_every_mask(name: str, dtype: torch.dtype) -> None:
    check(name, dtype)


def broken(of: Callable[[Mask], Mask]) -> Callable[..., Tensor]:
    real = native.attend
    return lambda *a: real(*a[:6], of(a[6]), *a[7:])


@kernels
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("window", lambda s: replace(s, allowed=Band(True, s.allowed.window + 1))),
        ("two windows", lambda s: replace(s, allowed=Band(True, 40))),
        ("chunk", lambda s: replace(s, allowed=Band(True, None, 8))),
        ("chunk and window", lambda s: replace(s, allowed=Band(True, 6))),
        ("sinks", lambda s: replace(s, sinks=None)),
        ("sinks", lambda s: replace(s, sinks=s.sinks.flip(0))),
        ("cap", lambda s: replace(s, cap=None)),
        ("cap", lambda s: replace(s, cap=1.6)),
        ("slopes", lambda s: replace(s, bias=None)),
        ("slopes", lambda s: replace(s, bias=alibi(SLOPES[::-1]))),
        ("slopes, rounded", lambda s: replace(s, bias=alibi(SLOPES, Alibi(0.03)))),
        ("all", lambda s: replace(s, bias=alibi(SLOPES))),
    ],
)
def test_a_mask_told_wrong_is_seen(name: str, wrong: Callable[[Mask], Mask], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "attend", broken(wrong))
    with pytest.raises(AssertionError):
        check(name, torch.float32)


@kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_several_requests_in_one_call(dtype: torch.dtype) -> None:
    """Rows under tables of their own give the bits of one call a request; a row at position -1 gives 0."""
    pools = rand(60, 2, 24, dtype=dtype), rand(60, 2, 9, dtype=dtype, seed=1)
    q, at = rand(1, 4, 4, 24, dtype=dtype, seed=2), torch.tensor([[13, 0, -1, 29]])
    tables = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(i))[:10] for i in range(4)])
    for mask in masks(dtype).values():
        z = native.attend(q, pools, tables, at, 3, 0.4, mask)
        for r in (0, 1, 3):
            assert torch.equal(
                native.attend(q[:, r : r + 1], pools, tables[r], at[:, r : r + 1].contiguous(), 3, 0.4, mask), z[:, r : r + 1]
            )
        assert z[:, 2].eq(0).all()
        assert torch.equal(ops.attend(q, KVCache([], (q,), PagedRows(pools, tables, 3, at)), mask, 0.4), z)
        assert not torch.equal(native.attend(q, pools, tables.flip(0).contiguous(), at, 3, 0.4, mask), z)


@kernels
def test_rows_of_several_requests_are_stored_under_their_tables() -> None:
    x, pool, tables, at = (
        rand(1, 3, 2, 5, dtype=torch.float32),
        torch.zeros(24, 2, 5),
        torch.tensor([[2, 0], [1, 5], [4, 3]]),
        torch.tensor([[5, 2, -1]]),
    )
    native.store(x, (pool,), tables, at, 4)
    want = torch.zeros_like(pool)
    want[1], want[6] = x[0, 0], x[0, 1]
    assert torch.equal(pool, want)


@kernels
def test_a_mask_that_is_more_than_data_does_not_fit() -> None:
    q, segment = paged(torch.float32, 9, 2, 4, 2, 24, 9, 3)
    at, pools = segment.q_at, segment.paged.pools
    unknown = [
        bidirectional, window(4), prefix(3), causal & Mask(lambda q, k: k != 3), replace(causal, bias=lambda q, k: (k - q).double()),
        replace(causal, by_segment=lambda s, p: s), replace(causal, sinks=torch.zeros(4).double()), causal & chunk(3) & chunk(4),
    ]  # fmt: skip
    assert not any(native.fits_attend(q, pools, segment.paged.table, at, s) for s in unknown)
    for mask in unknown[:-2]:  # and runs through torch, right
        assert near(ops.attend(q, KVCache([segment]), mask, 0.4), truth(q, segment, mask, 0.4))


def test_bands_meet_as_functions_do() -> None:
    q, k = torch.arange(30)[:, None], torch.arange(30)[None]
    parts = [causal, window(4), window(9), chunk(5), chunk(7), bidirectional, prefix(3)]
    for a in parts:
        for b in parts:
            assert torch.equal((a & b).allowed(q, k) | (q < 0), a.allowed(q, k) & b.allowed(q, k))
    assert isinstance((causal & window(3) & chunk(4)).allowed, Band) and not isinstance((causal & prefix(torch.tensor([2]))).allowed, Band)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_single_families(dtype: torch.dtype, width: int) -> None:
    """Gemma's weight counts from 1 and is not rounded before; another norm has no weight."""
    x, w = rand(2, 5, width, dtype=dtype, scale=3) + 1, rand(width, dtype=dtype, seed=1)
    d = x.double()
    inverse = torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5)
    for f, want in (
        (lambda x: ops.rms_offset(x, w, 1e-5), d * inverse * (1 + w.double())),
        (lambda x: ops.rms(x, None, 1e-5), d * inverse),
    ):
        with native.off():
            theirs = f(x)
        assert near(f(x), want) and no_worse(f(x), theirs, want)
        assert torch.equal(f(x)[1:, 2:3], f(x[1:, 2:3].contiguous()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_limits_factors_and_gates(dtype: torch.dtype) -> None:
    x, up = rand(1, 4, 100, dtype=dtype, scale=6), rand(1, 4, 100, dtype=dtype, seed=1, scale=6)
    heads, shares = x.view(1, 4, 5, 20), up[..., :5, None].contiguous()
    for f, want in (
        (lambda: ops.capped(x, 2.5), 2.5 * torch.tanh(x.double() / 2.5)),
        (lambda: ops.capped(x * 1e-3, 30.0), 30 * torch.tanh((x * 1e-3).double() / 30)),
        (lambda: ops.gate(x, up, "clamped"), F.silu(1.702 * x.double().clamp(max=7)) / 1.702 * (up.double().clamp(-7, 7) + 1)),
        (lambda: ops.gated(x, up[..., :1].contiguous()), x.double() * up[..., :1].double().sigmoid()),
        (lambda: ops.gated(heads, shares), heads.double() * shares.double().sigmoid()),
        (lambda: ops.clipped(x, 0.75), x.double().clamp(-0.75, 0.75)),
    ):
        with native.off():
            theirs = f()
        assert no_worse(f(), theirs, want)
    assert torch.equal(ops.clipped(x, 1e300), x)
    for factor in (1.7, 1e-3, ops.rounded(math.sqrt(3072), dtype)):
        assert torch.equal(ops.scaled(x, factor), x * factor)


def bend(dtype: torch.dtype, x: Tensor, alphas: tuple[float, float] = (0.6, -0.4)) -> tuple[Tensor, Tensor, Tensor]:
    """Return xIELU by the kernel, by torch, and by its formula in float64."""
    p, n = (torch.tensor([a], dtype=dtype) for a in alphas)
    beta, eps = torch.tensor(0.5, dtype=dtype), torch.tensor(-1e-6, dtype=dtype)
    d, up, down = x.double(), F.softplus(p.double()), 0.5 + F.softplus(n.double())
    want = torch.where(d > 0, up * d * d, (torch.expm1(d.clamp(max=float(eps))) - d) * down) + 0.5 * d
    with native.off():
        theirs = ops.xielu(x, p, n, beta, eps)
    return ops.xielu(x, p, n, beta, eps), theirs, want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_activation_that_learns(dtype: torch.dtype) -> None:
    """Also near 0, where e^x − 1 − x loses every digit if it is not computed as one."""
    for scale in (6.0, 1e-3, 1e-6):
        x = rand(1, 4, 100, dtype=dtype, scale=scale)
        got, theirs, want = bend(dtype, x)
        assert no_worse(got, theirs, want)
        assert torch.equal(bend(dtype, x[:, 1:2])[0], got[:, 1:2])


def test_numbers_as_a_dtype_holds_them() -> None:
    for x in (59.87, 1.0, -0.1, 3e-5, 2.0**0.5, 1e9):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            if abs(x) < 6e4 or dtype is not torch.float16:
                assert ops.rounded(x, dtype) == pytest.approx(float(torch.tensor(x, dtype=dtype)), rel=1e-15) or (dtype, x) == (
                    torch.float16,
                    3e-5,
                )


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_that_grow(dtype: torch.dtype, first: int) -> None:
    x, at, spec = rand(1, 4, 3, 8, dtype=dtype), torch.tensor([[0, 8 + (1 - first), 9 + (1 - first), 4000]]), Temper(5, 0.7, first)
    growth = 1 + 0.7 * torch.log1p(((at + first) // 5).double())[..., None, None]
    with native.off():
        theirs = ops.scale_by_position(x, at, spec)
    assert no_worse(ops.scale_by_position(x, at, spec), theirs, x.double() * growth)
    assert not near(ops.scale_by_position(x, at + 1, spec), x.double() * growth)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wide_product_is_not_rounded(dtype: torch.dtype) -> None:
    x, w, b = rand(3, 100, dtype=dtype), rand(40, 100, dtype=dtype, seed=1), rand(40, dtype=dtype, seed=2)
    want = x.double() @ w.double().T + b.double()
    y = ops.linear_wide(x, w, b)
    assert y.dtype is torch.float32 and (y - want).abs().max() < 1e-5
    assert (ops.linear(x, w, b) - want).abs().max() > 1e-3 or dtype is torch.float32
    assert torch.equal(ops.linear_wide(x[1:2], w, b), y[1:2]) or not native.available()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_embedding_that_skips(dtype: torch.dtype) -> None:
    table, ids = rand(50, 19, dtype=dtype), torch.tensor([[3, 0, 47, 3]])
    assert torch.equal(ops.embedding(ids, table, 2), table[ids + 2])
    if native.fits_embedding(ids, table):
        assert native.embedding(torch.tensor([48, -1, -3]), table, 2).isnan().all()


@kernels
@pytest.mark.parametrize(
    ("name", "wrong", "check"),
    [
        ("norm", lambda f: lambda *a, **k: f(*a, **{**k, "offset": False}), lambda: test_norms_of_single_families(torch.float32, 64)),
        ("capped", lambda f: lambda x, cap: f(x, cap * 1.01), lambda: test_limits_factors_and_gates(torch.float32)),
        ("clipped", lambda f: lambda x, most: f(x, most * 1.01), lambda: test_limits_factors_and_gates(torch.float32)),
        ("xielu", lambda f: lambda x, p, n, *more: f(x, n, p, *more), lambda: test_an_activation_that_learns(torch.float32)),
        ("scaled", lambda f: lambda x, by: f(x, by * 1.01), lambda: test_limits_factors_and_gates(torch.float32)),
        ("gated", lambda f: lambda x, g: f(x, -g), lambda: test_limits_factors_and_gates(torch.float32)),
        ("gate", lambda f: lambda g, up, act: f(g, up, "silu"), lambda: test_limits_factors_and_gates(torch.float32)),
        ("scale_by_position", lambda f: lambda x, at, first, *more: f(x, at, 1, *more), lambda: test_queries_that_grow(torch.float32, 0)),
        ("linear_wide", lambda f: twins.linear, lambda: test_a_wide_product_is_not_rounded(torch.bfloat16)),
        ("embedding", lambda f: lambda ids, table, skip=0: f(ids, table), lambda: test_an_embedding_that_skips(torch.float32)),
    ],
)  # fmt: skip
def test_the_checks_see_a_wrong_kernel(name: str, wrong: Any, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, name, wrong(getattr(native, name)))
    with pytest.raises(AssertionError):
        check()
