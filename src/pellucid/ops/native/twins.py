"""The ops' fast twins on a CPU, for rows in float32 or bfloat16: `fits_x(...)` says whether `x(...)` may stand in.

Activations have the dtype of the weights; sums are taken in float32 and rounded once. A row has the same bits whatever rows stand
beside it. Nothing here computes gradients.
"""

import torch
from torch import Tensor, nn

from pellucid.ops.native import library
from pellucid.ops.native.library import (
    ADD,
    ANGLES,
    ARGMAX,
    BEND,
    EMBEDDING,
    GATE,
    HALF,
    LINEAR,
    LINEAR_WIDE,
    MANY,
    MANY_WIDE,
    NORM,
    PACK,
    ROTATE,
    STREAM,
    TIMES,
    WAVES,
    Op,
    available,
    call,
    fresh,
    most,
)
from pellucid.ops.precision import wide

ROWS = 16  # more are torch's, which multiplies many rows as fast; but see library.any_rows
ROUTED = ROWS * ROWS  # rows that tokens and the experts they have chosen may make
BF16_IS_FAST = torch.cpu._is_avx512_bf16_supported()  # without, torch multiplies bf16 at a tenth of the speed of float32
ACTS = {"gelu_tanh": 0, "gelu_bloom": 0, "gelu": 1, "silu": 2, "relu": 3, "clamped": 4}
SCALED, CAPPED, SIGMOID = 5, 6, 7
AMONG_MANY = {LINEAR: MANY, LINEAR_WIDE: MANY_WIDE}
PLAIN = (Tensor, nn.Parameter)  # a fake, a distributed or a functional tensor has no memory of its own to point to


def fits(*tensors: Tensor | None) -> bool:
    """Whether all are plain tensors in this machine's memory, laid out row after row, of one dtype that the kernels know."""
    if not available() or torch.compiler.is_compiling():
        return False
    grad, dtype = torch.is_grad_enabled(), None
    for t in tensors:
        if t is None:
            continue
        if type(t) not in PLAIN or not t.is_cpu or (grad and t.requires_grad) or not t.is_contiguous():
            return False
        if dtype is None:
            dtype = t.dtype
            if dtype not in HALF:
                return False
        elif t.dtype is not dtype:
            return False
    return True


def slices(*tensors: Tensor) -> bool:
    """The same of tensors that may be parts of greater ones, each last axis in one piece."""
    grad, dtype = torch.is_grad_enabled(), tensors[0].dtype
    plain = all(type(t) in PLAIN and t.is_cpu and t.dtype is dtype and not (grad and t.requires_grad) for t in tensors)
    return plain and dtype in HALF and fits() and all(t.stride(-1) == 1 for t in tensors)


def numbers(*tensors: Tensor) -> bool:
    """Whether these are plain contiguous int64 tensors in memory."""
    return all(type(t) in PLAIN and t.is_cpu and t.dtype is torch.int64 and t.is_contiguous() for t in tensors)


def few(x: Tensor) -> bool:
    """Whether x [B T ...] holds no more rows than the kernels take, and one."""
    n = x.shape[0] * x.shape[1] if x.ndim > 2 else x.shape[0] if x.ndim == 2 else 1
    return 0 < n <= most(ROWS) and x.numel() > 0


def taken(x: Tensor) -> bool:
    """Whether the kernels take x [B T ...]: few rows, or any number of them in bf16 where torch is slow at it."""
    return few(x) or (x.dtype is torch.bfloat16 and not BF16_IS_FAST and x.numel() > 0)


def count(x: Tensor) -> int:
    """Rows of x, whatever leads to its last axis."""
    return x.numel() // x.shape[-1]


def address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def fits_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return taken(x) and fits(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [... in] times weight [out in], plus bias [out]."""
    return product(LINEAR, x, weight, bias, x.dtype)


def linear_wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same, not rounded back to bf16."""
    return product(LINEAR_WIDE, x, weight, bias, wide(x.dtype))


def product(op: Op, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [... in] times weight [out in], plus bias [out], in dtype."""
    n, k = weight.shape
    y = fresh((*x.shape[:-1], n), dtype)
    rows, half, also = count(x), HALF[x.dtype], () if bias is None else (bias,)
    if rows > ROWS:
        x, op = pack(x), AMONG_MANY[op]
    call(op, half, (x, weight, *also), (y,), weight.data_ptr(), x.data_ptr(), y.data_ptr(), address(bias), rows, n, k)
    return y


def pack(x: Tensor) -> Tensor:
    """Rows of x [... in] as the product of many rows reads them."""
    assert library.lib is not None
    rows, k = count(x), x.shape[-1]
    y = fresh((library.lib.packed(rows, k),), wide(x.dtype))
    call(PACK, HALF[x.dtype], (x,), (y,), x.data_ptr(), y.data_ptr(), rows, k)
    return y


def fits_embedding(ids: Tensor, table: Tensor) -> bool:
    return 0 < ids.numel() <= most(ROWS) and numbers(ids) and fits(table)


def embedding(ids: Tensor, table: Tensor, skip: int = 0) -> Tensor:
    """Rows of table [rows width] by ids [...], after the first `skip`: [... width]. An id outside the table gives NaN."""
    y = fresh((*ids.shape, table.shape[1]), table.dtype)
    rows, width = table.shape
    first = table.data_ptr() + skip * width * table.element_size()
    call(EMBEDDING, HALF[table.dtype], (ids, table), (y,), first, ids.data_ptr(), y.data_ptr(), ids.numel(), width, rows - skip)
    return y


def fits_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> bool:
    even = x.is_contiguous() or (x.ndim == 3 and x.shape[0] == 1)
    return even and taken(x) and slices(x) and fits(weight, bias) and (weight is None or weight.dtype is x.dtype)


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool, offset: bool = False) -> Tensor:
    """RMSNorm of x [... D]; LayerNorm where centred. offset: the weight counts from 1, and nothing is rounded before it."""
    y = fresh(tuple(x.shape), x.dtype)
    reads, apart = tuple(t for t in (x, weight, bias) if t is not None), x.shape[-1] if x.is_contiguous() else x.stride(1)
    words = x.data_ptr(), y.data_ptr(), address(weight), address(bias), count(x), x.shape[-1], apart, eps, int(centred), int(offset)
    call(NORM, HALF[x.dtype], reads, (y,), *words)
    return y


def fits_add(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and taken(x) and fits(x, y)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of one shape."""
    z = fresh(tuple(x.shape), x.dtype)
    call(ADD, HALF[x.dtype], (x, y), (z,), x.data_ptr(), y.data_ptr(), z.data_ptr(), x.numel())
    return z


def fits_gate(g: Tensor, up: Tensor | None, act: str) -> bool:
    some = taken(g) or (g.ndim == 2 and 0 < g.shape[0] <= most(ROUTED))
    return some and act in ACTS and (up is None or up.shape == g.shape) and fits(g, up)


def gate(g: Tensor, up: Tensor | None, act: str) -> Tensor:
    """act(g) · up; act(g) where there is no up."""
    return each(g, up, ACTS[act])


def each(g: Tensor, up: Tensor | None, act: int, amount: float = 0.0) -> Tensor:
    """What a function of numbers makes of each, by its number in rows.h."""
    y = fresh(tuple(g.shape), g.dtype)
    reads = (g,) if up is None else (g, up)
    call(GATE, HALF[g.dtype], reads, (y,), g.data_ptr(), address(up), y.data_ptr(), g.numel(), act, amount)
    return y


def fits_each(x: Tensor) -> bool:
    return taken(x) and fits(x)


def scaled(x: Tensor, factor: float) -> Tensor:
    """x · factor."""
    return each(x, None, SCALED, factor)


def capped(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap)."""
    return each(x, None, CAPPED, cap)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return each(x, None, SIGMOID)


def fits_gated(x: Tensor, gate: Tensor) -> bool:
    return x.ndim == 3 and gate.shape == (*x.shape[:2], 1) and taken(x) and fits(x, gate)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """x [B T D] times the sigmoid of gate [B T 1]."""
    y, rows = fresh(tuple(x.shape), x.dtype), gate.numel()
    call(TIMES, HALF[x.dtype], (x, gate), (y,), x.data_ptr(), gate.data_ptr(), 0, y.data_ptr(), rows, x.numel() // rows, 1, 0.0)
    return y


def fits_scale_by_position(x: Tensor, positions: Tensor) -> bool:
    return x.shape[:2] == positions.shape and taken(x) and numbers(positions) and fits(x)


def scale_by_position(x: Tensor, positions: Tensor, floor: int, amount: float) -> Tensor:
    """x [B T H K] times 1 + amount · ln(1 + ⌊(p + 1) / floor⌋), p of positions [B T]."""
    y, rows = fresh(tuple(x.shape), x.dtype), positions.numel()
    words = x.data_ptr(), 0, positions.data_ptr(), y.data_ptr(), rows, x.numel() // rows, floor, amount
    call(TIMES, HALF[x.dtype], (x, positions), (y,), *words)
    return y


def fits_angles(positions: Tensor, dtype: torch.dtype) -> bool:
    return 0 < positions.numel() <= most(ROWS) and dtype in HALF and numbers(positions) and fits()


def angles(positions: Tensor, frequencies: Tensor, amount: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of positions [B T] times frequencies [R/2], or each row's own [N R/2], times amount: [B T 1 R/2] each, in dtype.

    Frequencies are float64 or float32.
    """
    half = frequencies.shape[-1]
    shape = (*positions.shape, 1, half)
    cos, sin = fresh(shape, dtype), fresh(shape, dtype)
    words = positions.data_ptr(), frequencies.data_ptr(), cos.data_ptr(), sin.data_ptr(), positions.numel(), half
    apart = half if frequencies.ndim == 2 else 0
    call(ANGLES, HALF[dtype], (positions, frequencies), (cos, sin), *words, int(frequencies.dtype is torch.float32), apart, amount)
    return cos, sin


def bend(totals: Tensor, lists: Tensor | None, half: int, original: int, theta: float, factor: float) -> Tensor:
    """Frequencies [N R/2] in float64 of rows whose whole texts have totals [B T] tokens.

    lists [2 R/2]: those of texts up to `original`, and of longer ones; without lists the base grows, as of Dynamic.
    """
    y = fresh((totals.numel(), half), torch.float64)
    reads = (totals,) if lists is None else (totals, lists)
    words = totals.data_ptr(), address(lists), y.data_ptr(), totals.numel(), half, original, theta, factor
    call(BEND, 0, reads, (y,), *words)
    return y


def waves(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sinusoids of positions [B T]: [B T width]."""
    y = fresh((*positions.shape, width), dtype)
    call(WAVES, HALF[dtype], (positions,), (y,), positions.data_ptr(), y.data_ptr(), positions.numel(), width)
    return y


def fits_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    even = x.ndim == 4 and (x.shape[0] == 1 or x.stride(0) == x.stride(1) * x.shape[1])
    return even and taken(x) and x.dtype is cos.dtype and slices(x) and fits(cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the pairs of the first R channels of x [B T H K] by cos and sin [B T 1 R/2]; what follows them stays."""
    y = fresh(tuple(x.shape), x.dtype)
    B, T, H, K = x.shape
    words = x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr(), B * T, H, 2 * cos.shape[-1], K, x.stride(1), x.stride(2)
    call(ROTATE, HALF[x.dtype], (x, cos, sin), (y,), *words, int(interleaved))
    return y


def fits_argmax(x: Tensor) -> bool:
    return few(x) and fits(x)


def argmax(x: Tensor) -> Tensor:
    """The lowest index of the largest value of each row of x [... V]: LongTensor [...]. A NaN is larger than all."""
    y = fresh(tuple(x.shape[:-1]), torch.int64)
    call(ARGMAX, HALF[x.dtype], (x,), (y,), x.data_ptr(), y.data_ptr(), count(x), x.shape[-1])
    return y


def stream(block: Tensor) -> None:
    """Read a tensor from end to end and do nothing with it, to know what the memory gives."""
    unread = torch.empty(1)
    call(STREAM, 0, (block,), (unread,), block.data_ptr(), block.numel() * block.element_size(), unread.data_ptr())
