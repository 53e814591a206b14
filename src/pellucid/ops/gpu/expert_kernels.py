"""Triton kernels of a mixture of experts: the choice, the shares, the rows by expert, their products, the sum of a token's rows."""

import triton
import triton.language as tl

from pellucid.ops.gpu.kernels import begin, ready


@triton.jit
def experts(
    x, weight, bias, ends, y, inner, outer, count,
    BIAS: tl.constexpr, COUNT: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply row r of x [N inner], sorted by expert, by its expert's weight [count outer inner]; ends [count]: where rows end."""
    begin(PDL)
    row = tl.program_id(0)
    n = tl.program_id(1) * OUT + tl.arange(0, OUT)
    k = tl.arange(0, IN)
    e = tl.arange(0, COUNT)
    ready(PDL)
    expert = tl.sum((tl.load(ends + e, mask=e < count, other=2147483647) <= row).to(tl.int32), 0)
    base = weight + expert.to(tl.int64) * outer * inner + n[:, None].to(tl.int64) * inner
    total = tl.zeros((OUT, IN), tl.float32)
    for start in range(0, inner, IN):
        at = start + k
        w = tl.load(base + at[None, :], mask=(n[:, None] < outer) & (at < inner)[None, :], other=0.0)
        total += tl.load(x + row * inner + at, mask=at < inner, other=0.0).to(tl.float32)[None, :] * w.to(tl.float32)
    out = tl.sum(total, 1)
    if BIAS:
        out += tl.load(bias + expert * outer + n, mask=n < outer, other=0.0).to(tl.float32)
    tl.store(y + row.to(tl.int64) * outer + n, out.to(y.dtype.element_ty), mask=n < outer)


@triton.jit
def best(ranks, chosen, experts, ranked, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, PDL: tl.constexpr):
    """Choose the `chosen` highest of each row of ranks [rows experts], from the highest down, of ties the first."""
    begin(PDL)
    row = tl.program_id(0)
    e = tl.arange(0, EXPERTS)
    ready(PDL)
    left = tl.load(ranks + row * experts + e, mask=e < experts, other=float("-inf"))
    open = e < experts
    for a in range(CHOSEN):
        top = tl.max(tl.where(open, left, float("-inf")), 0)
        first = tl.min(tl.where(open & ((left == top) | (left != left)), e, EXPERTS), 0)
        tl.store(chosen + row * ranked + a, first.to(tl.int64))
        open = open & (e != first)


@triton.jit
def shares(
    affinity, chosen, y, experts, few, scale, least, NORMALISED: tl.constexpr, FEW: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Return the affinities of a row's chosen experts, over their sum if NORMALISED, times the scale."""
    begin(PDL)
    row = tl.program_id(0)
    a = tl.arange(0, FEW)
    ready(PDL)
    e = tl.load(chosen + row * few + a, mask=a < few, other=0)
    v = tl.load(affinity + row * experts + e, mask=a < few, other=0.0).to(tl.float32)
    if NORMALISED:
        v = v / (tl.sum(v, 0) + least)
    tl.store(y + row * few + a, (v * scale).to(y.dtype.element_ty), mask=a < few)


@triton.jit
def sort(chosen, order, token, ends, count, few, experts, COUNT: tl.constexpr, SOME: tl.constexpr, PDL: tl.constexpr):
    """Sort choices [count] by expert, those of one expert as they come: which choice each row is, its token, each expert's end."""
    begin(PDL)
    own, i = tl.program_id(0) * SOME + tl.arange(0, SOME), tl.arange(0, COUNT)
    ready(PDL)
    all = tl.load(chosen + i, mask=i < count, other=2147483647)[None, :]
    tl.store(ends + own, tl.sum((all <= own[:, None]).to(tl.int32), 1), mask=own < experts)
    mine = tl.load(chosen + own, mask=own < count, other=0)[:, None]
    place = tl.sum(((all < mine) | ((all == mine) & (i[None, :] < own[:, None]))).to(tl.int32), 1)
    tl.store(order + place, own.to(tl.int64), mask=own < count)
    tl.store(token + place, (own // few).to(tl.int64), mask=own < count)


@triton.jit
def combine(
    y, share, order, out, width, count, few, WEIGHTED: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Sum the sorted rows y [count width] of each token, times their shares unless WEIGHTED."""
    begin(PDL)
    token = tl.program_id(0)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    i = tl.arange(0, COUNT)
    ready(PDL)
    choices = tl.load(order + i, mask=i < count, other=-1)
    total = tl.zeros((WIDTH,), tl.float32)
    for a in range(few):
        choice = token * few + a
        row = tl.sum(tl.where(choices == choice, i, 0), 0)
        v = tl.load(y + row.to(tl.int64) * width + d, mask=d < width, other=0.0).to(tl.float32)
        if not WEIGHTED:
            s = tl.load(share + choice).to(y.dtype.element_ty).to(tl.float32)
            v = (v * s).to(y.dtype.element_ty).to(tl.float32)
        total += v
    tl.store(out + token.to(tl.int64) * width + d, total.to(out.dtype.element_ty), mask=d < width)
