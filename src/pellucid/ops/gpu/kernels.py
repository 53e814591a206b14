"""Triton kernels of a decode step: few rows, so that reading the weights takes nearly all of the time.

Imported only where Triton is. Each kernel computes in float32 and rounds where its torch twin does. With PDL the next kernel is launched
while this one still runs (programmatic dependent launch, on Hopper and newer): `begin` lets it start, `ready` waits for the one before.
"""

import triton
import triton.language as tl


@triton.jit
def begin(PDL: tl.constexpr):
    """Let the next kernel of the stream be launched."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def ready(PDL: tl.constexpr):
    """Wait until the kernel before has written its results."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def tanh(x):
    """Compute the hyperbolic tangent, from -1 to 1 at any x."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def act(x, ACT: tl.constexpr):
    """Compute the activation of that name."""
    if ACT == "silu":
        return x / (1.0 + tl.exp(-x))
    elif ACT == "gelu":
        return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACT == "relu2":
        return tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    else:
        return tl.maximum(x, 0.0)


@triton.jit
def fetch(base, at, inner, LINES: tl.constexpr, PDL: tl.constexpr):
    """Ask for rows of weights before the kernel before has ended: they need nothing of it, and memory would stand idle."""
    if PDL and LINES > 0:
        line = tl.minimum(tl.arange(0, LINES) * (128 // (base.dtype.element_ty.primitive_bitwidth // 8)), inner - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1];\nmov.b32 $0, 0;", "=r,l", [(base + at[:, None] * inner + line[None, :]).to(tl.int64)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def rows_times(x, base, n, inner, outer, ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr):
    """Multiply x [ROWS inner] by rows n of a weight at `base`. Returns [ROWS OUT]."""
    k, r = tl.arange(0, IN), tl.arange(0, ROWS)
    total = tl.zeros((ROWS, OUT, IN), tl.float32)
    at = base + n[:, None].to(tl.int64) * inner
    for start in range(0, inner, IN):
        i = start + k
        w = tl.load(at + i[None, :], mask=(n[:, None] < outer) & (i < inner)[None, :], other=0.0, eviction_policy="evict_first")
        rows = tl.load(x + r[:, None] * inner + i[None, :], mask=(i < inner)[None, :], other=0.0)
        total += rows.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
    return tl.sum(total, 2)


@triton.jit(do_not_specialize=["outer", "outer_2", "outer_3"])
def product(
    x, weight, bias, y, outer, weight_2, bias_2, y_2, outer_2, weight_3, bias_3, y_3, outer_3, inner,
    ROWS: tl.constexpr, BIAS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply x [ROWS inner] by up to three weights [outer inner]: each program OUT outputs of all rows, IN inputs at a time."""
    begin(PDL)
    block = tl.program_id(0)
    first, second = tl.cdiv(outer, OUT), tl.cdiv(outer_2, OUT)
    if block >= first + second:
        block, weight, bias, y, outer = block - first - second, weight_3, bias_3, y_3, outer_3
    elif block >= first:
        block, weight, bias, y, outer = block - first, weight_2, bias_2, y_2, outer_2
    n = block * OUT + tl.arange(0, OUT)
    fetch(weight, tl.minimum(n, outer - 1).to(tl.int64), inner, LINES, PDL)
    ready(PDL)
    out = rows_times(x, weight, n, inner, outer, ROWS, OUT, IN)
    if BIAS:
        out += tl.load(bias + n, mask=n < outer, other=0.0).to(tl.float32)[None, :]
    r = tl.arange(0, ROWS)
    tl.store(y + r[:, None] * outer + n[None, :], out.to(y.dtype.element_ty), mask=(n < outer)[None, :])


@triton.jit
def gated_product(
    x, weight, weight_2, g, up, y, outer, inner,
    ACT: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply x [ROWS inner] by two weights [outer inner], and act on the first product times the second: product, product and gate."""
    begin(PDL)
    n = tl.program_id(0) * OUT + tl.arange(0, OUT)
    at = tl.minimum(n, outer - 1).to(tl.int64)
    fetch(weight, at, inner, LINES, PDL)
    fetch(weight_2, at, inner, LINES, PDL)
    ready(PDL)
    a = rows_times(x, weight, n, inner, outer, ROWS, OUT, IN).to(y.dtype.element_ty)
    b = rows_times(x, weight_2, n, inner, outer, ROWS, OUT, IN).to(y.dtype.element_ty)
    place = tl.arange(0, ROWS)[:, None] * outer + n[None, :]
    inside = (n < outer)[None, :]
    tl.store(g + place, a, mask=inside)
    tl.store(up + place, b, mask=inside)
    v = act(a.to(tl.float32), ACT).to(y.dtype.element_ty).to(tl.float32) * b.to(tl.float32)
    tl.store(y + place, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def norm(
    x, added, z, weight, bias, y, width, eps, period,
    ADD: tl.constexpr, CENTRED: tl.constexpr, OFFSET: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Divide row r of x [rows width] by its root mean square, or centre it and divide by its deviation; row r % period of weight.

    ADD: first add the row of `added`, and write the sum to z.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDTH)
    inside = d < width
    ready(PDL)
    v = tl.load(x + row * width + d, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        v = (v + tl.load(added + row * width + d, mask=inside, other=0.0).to(tl.float32)).to(y.dtype.element_ty)
        tl.store(z + row * width + d, v, mask=inside)
        v = v.to(tl.float32)
    if CENTRED:
        v = tl.where(inside, v - tl.sum(v, 0) / width, 0.0)
    v = v / tl.sqrt(tl.sum(v * v, 0) / width + eps)
    if WEIGHT:
        w = tl.load(weight + (row % period) * width + d, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            v = v * (1.0 + w)
        elif CENTRED:
            v = v * w
        else:
            v = v.to(y.dtype.element_ty).to(tl.float32) * w
    if BIAS:
        v += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + d, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def rotate(
    x, cos, sin, y, heads, width, half,
    INTERLEAVED: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Turn the pairs of the first 2·half channels of x [rows heads width] by cos and sin [rows half]; copy the REST."""
    begin(PDL)
    row, head = tl.program_id(0), tl.program_id(1)
    at = (row.to(tl.int64) * heads + head) * width
    j = tl.arange(0, HALF)
    inside = j < half
    first = at + (2 * j if INTERLEAVED else j)
    second = at + (2 * j + 1 if INTERLEAVED else half + j)
    ready(PDL)
    c = tl.load(cos + row * half + j, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row * half + j, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + first, (a * c - b * s).to(y.dtype.element_ty), mask=inside)
    tl.store(y + second, (b * c + a * s).to(y.dtype.element_ty), mask=inside)
    if REST > 0:
        r = tl.arange(0, REST)
        left = 2 * half + r < width
        tl.store(y + at + 2 * half + r, tl.load(x + at + 2 * half + r, mask=left, other=0.0), mask=left)


@triton.jit(do_not_specialize=["heads", "groups"])
def rotate_and_store(
    q, k, v, cos, sin, q_rotated, k_rotated, k_pool, v_pool, tables, positions, longest, size, heads, groups, width, half, v_width,
    INTERLEAVED: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Turn q and k [rows heads width], and store the rotated k, and v: rotate, rotate and store."""
    begin(PDL)
    row, head = tl.program_id(0), tl.program_id(1)
    j = tl.arange(0, HALF)
    inside = j < half
    first, second = (2 * j if INTERLEAVED else j), (2 * j + 1 if INTERLEAVED else half + j)
    x, y, own, count = q, q_rotated, head, heads
    if head >= heads:
        x, y, own, count = k, k_rotated, head - heads, groups
    at = (row.to(tl.int64) * count + own) * width
    ready(PDL)
    position = tl.load(positions + row)
    slot = tl.load(tables + row * longest + position // size) * size + position % size
    place = (slot * groups + own) * width
    c = tl.load(cos + row * half + j, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row * half + j, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(x + at + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + second, mask=inside, other=0.0).to(tl.float32)
    rotated_a, rotated_b = (a * c - b * s).to(y.dtype.element_ty), (b * c + a * s).to(y.dtype.element_ty)
    tl.store(y + at + first, rotated_a, mask=inside)
    tl.store(y + at + second, rotated_b, mask=inside)
    tl.store(k_pool + place + first, rotated_a, mask=inside & (head + 0 * j >= heads))
    tl.store(k_pool + place + second, rotated_b, mask=inside & (head + 0 * j >= heads))
    if REST > 0:
        r = 2 * half + tl.arange(0, REST)
        left = r < width
        rest = tl.load(x + at + r, mask=left, other=0.0)
        tl.store(y + at + r, rest, mask=left)
        tl.store(k_pool + place + r, rest, mask=left & (head + 0 * r >= heads))
    i = tl.arange(0, V)
    inner = (i < v_width) & (head + 0 * i >= heads)
    tl.store(v_pool + (slot * groups + own) * v_width + i, tl.load(v + (row * groups + own) * v_width + i, mask=inner), mask=inner)


@triton.jit
def gate(g, up, y, count, ACT: tl.constexpr, UP: tl.constexpr, SIZE: tl.constexpr, PDL: tl.constexpr):
    """Compute act(g) · up, or act(g)."""
    begin(PDL)
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    ready(PDL)
    v = act(tl.load(g + i, mask=inside, other=0.0).to(tl.float32), ACT)
    if UP:
        v = v.to(y.dtype.element_ty).to(tl.float32) * tl.load(up + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + i, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def add(x, y, z, count, SIZE: tl.constexpr, PDL: tl.constexpr):
    """Add x and y."""
    begin(PDL)
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = i < count
    ready(PDL)
    v = tl.load(x + i, mask=inside, other=0.0).to(tl.float32) + tl.load(y + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(z + i, v.to(z.dtype.element_ty), mask=inside)


@triton.jit
def store(k, v, k_pool, v_pool, tables, positions, longest, size, k_width, v_width, K: tl.constexpr, V: tl.constexpr, PDL: tl.constexpr):
    """Write row r of k and v to the row of its pools that table r names for its position."""
    begin(PDL)
    row = tl.program_id(0)
    ready(PDL)
    at = tl.load(positions + row)
    slot = tl.load(tables + row * longest + at // size) * size + at % size
    i = tl.arange(0, K)
    tl.store(k_pool + slot * k_width + i, tl.load(k + row * k_width + i, mask=i < k_width), mask=i < k_width)
    j = tl.arange(0, V)
    tl.store(v_pool + slot * v_width + j, tl.load(v + row * v_width + j, mask=j < v_width), mask=j < v_width)


@triton.jit
def attend_part(
    q, k_pool, v_pool, tables, positions, z, tops, sums, longest, size, window, scale, cap, heads, groups, k_width, v_width,
    SPLITS: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    KEYS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend from the heads of group g of row r to one part of its keys: the largest score, the sum of e^, and the values' sum."""
    begin(PDL)
    row, g, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    each = heads // groups
    h, d, w = tl.arange(0, HEADS), tl.arange(0, K), tl.arange(0, V)
    ready(PDL)
    end = tl.load(positions + row).to(tl.int32) + 1
    start = 0
    if WINDOW:
        start = tl.maximum(0, end - window)
    span = tl.cdiv(tl.cdiv(end - start, SPLITS), KEYS) * KEYS
    start += part * span
    stop = tl.minimum(start + span, end)
    queries = tl.load(
        q + (row * heads + g * each + h[:, None]) * k_width + d[None, :], mask=(h < each)[:, None] & (d < k_width)[None, :], other=0.0
    )
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    sum = tl.zeros((HEADS, V), tl.float32)
    for first in range(start, stop, KEYS):
        at = first + tl.arange(0, KEYS)
        seen = at < stop
        page = tl.load(tables + row * longest + at // size, mask=seen, other=0)
        slot = page * size + at % size
        k = tl.load(k_pool + (slot[None, :] * groups + g) * k_width + d[:, None], mask=(d < k_width)[:, None] & seen[None, :], other=0.0)
        s = tl.dot(queries, k, input_precision="ieee") * scale
        if CAP:
            s = cap * tanh(s / cap)
        s = tl.where(seen[None, :], s, float("-inf"))
        peak = tl.maximum(top, tl.max(s, 1))
        shrink, e = tl.exp(top - peak), tl.exp(s - peak[:, None])
        v = tl.load(v_pool + (slot[:, None] * groups + g) * v_width + w[None, :], mask=seen[:, None] & (w < v_width)[None, :], other=0.0)
        total = total * shrink + tl.sum(e, 1)
        sum = sum * shrink[:, None] + tl.dot(e.to(v.dtype), v, input_precision="ieee")
        top = peak
    place = (row * heads + g * each + h) * SPLITS + part
    tl.store(tops + place, top, mask=h < each)
    tl.store(sums + place, total, mask=h < each)
    tl.store(z + place[:, None] * v_width + w[None, :], sum, mask=(h < each)[:, None] & (w < v_width)[None, :])


@triton.jit
def attend_join(
    z, tops, sums, sinks, y, heads, v_width, SPLITS: tl.constexpr, SINKS: tl.constexpr, V: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Join the parts of one row and head: each sum times e^ of its largest score less the largest of all."""
    begin(PDL)
    at = tl.program_id(0)
    i, w = tl.arange(0, SPLITS), tl.arange(0, V)
    ready(PDL)
    top = tl.load(tops + at * SPLITS + i)
    peak = tl.max(top, 0)
    if SINKS:
        sink = tl.load(sinks + at % heads).to(tl.float32)
        peak = tl.maximum(peak, sink)
    share = tl.exp(top - peak)
    total = tl.sum(tl.load(sums + at * SPLITS + i) * share, 0)
    if SINKS:
        total += tl.exp(sink - peak)
    parts = tl.load(z + (at * SPLITS + i)[:, None] * v_width + w[None, :], mask=(w < v_width)[None, :], other=0.0)
    out = tl.sum(parts * share[:, None], 0) / total
    tl.store(y + at * v_width + w, out.to(y.dtype.element_ty), mask=w < v_width)
