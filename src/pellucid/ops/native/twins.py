"""The ops' fast twins on a CPU, for rows in float32 or bfloat16: `fits_x(...)` is True if `x(...)` may replace the reference.

Activations have the dtype of the weights; sums are taken in float32 and rounded once. A row has the same bits in any batch. Nothing
here computes gradients.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pellucid.ops.native import library
from pellucid.ops.native.library import HALF, available, call, fresh, most
from pellucid.ops.precision import wide

ROWS = 16  # torch multiplies more rows as fast; but see library.any_rows
ROUTED = ROWS * ROWS  # the most rows of tokens times experts chosen
BF16_IS_FAST = torch.cpu._is_avx512_bf16_supported()  # without, torch multiplies bf16 at a tenth of the speed of float32
ACTS = {"gelu_tanh": 0, "gelu_bloom": 0, "gelu": 1, "silu": 2, "relu": 3, "clamped": 4}
SQUARES = {"relu2": "relu"}  # the activation of which another is the square: its kernel runs twice
SCALED, CAPPED, SIGMOID, ITSELF, CLIPPED = 5, 6, 7, 8, 9
MANY = {"linear": "many", "linear_wide": "many_wide"}  # the kernels of more than ROWS rows
PLAIN = (Tensor, nn.Parameter)  # a fake, a distributed or a functional tensor has no memory of its own to point to


def fits(*tensors: Tensor | None) -> bool:
    """True if all are plain contiguous tensors on a CPU, without gradients, of one dtype that the kernels know."""
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
    """True as for `fits`, for tensors that may be slices: only the last axis must be contiguous."""
    grad, dtype = torch.is_grad_enabled(), tensors[0].dtype
    plain = all(type(t) in PLAIN and t.is_cpu and t.dtype is dtype and not (grad and t.requires_grad) for t in tensors)
    return plain and dtype in HALF and fits() and all(t.stride(-1) == 1 for t in tensors)


def numbers(*tensors: Tensor) -> bool:
    """True if these are plain contiguous int64 tensors on a CPU."""
    return all(type(t) in PLAIN and t.is_cpu and t.dtype is torch.int64 and t.is_contiguous() for t in tensors)


def few(x: Tensor) -> bool:
    """True if x [B T ...] has at least one row and no more than the kernels take."""
    n = x.shape[0] * x.shape[1] if x.ndim > 2 else x.shape[0] if x.ndim == 2 else 1
    return 0 < n <= most(ROWS) and x.numel() > 0


def leads(dtype: torch.dtype) -> bool:
    """True if the kernels take any number of rows in this dtype: bf16 where torch multiplies it slowly, or they do in tiles."""
    return dtype is torch.bfloat16 and (not BF16_IS_FAST or (library.lib is not None and library.lib.tiles))


def taken(x: Tensor) -> bool:
    """True if the kernels take x [B T ...]: few rows, or any number of them if they lead in its dtype."""
    return few(x) or (leads(x.dtype) and x.numel() > 0)


def count(x: Tensor) -> int:
    """Count the rows of x, the product of all axes but the last."""
    return x.numel() // x.shape[-1]


def address(t: Tensor | None) -> int:
    """Return the address of a tensor's data, 0 for None."""
    return 0 if t is None else t.data_ptr()


def meets(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if the shapes of a product fit, x [... in], weight [... out in], bias [... out]: a kernel would read past an end."""
    return x.shape[-1] == weight.shape[-1] and (bias is None or bias.shape == weight.shape[:-1])


def fits_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return taken(x) and weight.ndim == 2 and meets(x, weight, bias) and fits(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x [... in] by weight [out in], and add bias [out]. Returns [... out]."""
    return product("linear", x, weight, bias, x.dtype)


def linear_wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply as `linear` does, without rounding to bf16. Returns float32."""
    return product("linear_wide", x, weight, bias, wide(x.dtype))


def product(kernel: str, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply x [... in] by weight [out in], and add bias [out], by a kernel. Returns [... out] in `dtype`."""
    n, k = weight.shape
    y = fresh((*x.shape[:-1], n), dtype)
    rows, half, also = count(x), HALF[x.dtype], () if bias is None else (bias,)
    if rows > ROWS:
        x, kernel = packed_once(x, pack), MANY[kernel]
    call(
        kernel, half, (x, weight, *also), (y,), w=weight.data_ptr(), x=x.data_ptr(), y=y.data_ptr(), bias=address(bias), rows=rows, n=n, k=k
    )  # fmt: skip
    return y


def packed_once(x: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor:
    """Return pack(x); under a recording once for the products that share x."""
    recording = library.here.recording
    return pack(x) if recording is None else recording.packed_once(x, pack)


def pack(x: Tensor) -> Tensor:
    """Pack the rows of x [... in] for the kernel of many rows."""
    return packed(x, x.dtype)


def packed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Pack the rows of x [... in] for the kernel of many rows in `dtype`: its own, or bf16 where that is multiplied in tiles."""
    assert library.lib is not None
    rows, k = count(x), x.shape[-1]
    y = fresh((library.lib.packed(rows, k, HALF[dtype]),), wide(x.dtype))
    call(
        "pack" if dtype is x.dtype else "pack_tiles", HALF[x.dtype], (x,), (y,), x=x.data_ptr(), to=y.data_ptr(), rows=rows, k=k
    )  # fmt: skip
    return y


def fits_embedding(ids: Tensor, table: Tensor) -> bool:
    return 0 < ids.numel() <= most(ROWS) and numbers(ids) and fits(table)


def embedding(ids: Tensor, table: Tensor, skip: int = 0) -> Tensor:
    """Look up the rows of table [rows width] at ids [...] + skip. Returns [... width]. An id outside the table gives NaN."""
    y = fresh((*ids.shape, table.shape[1]), table.dtype)
    rows, width = table.shape
    first = table.data_ptr() + skip * width * table.element_size()
    call(
        "embedding", HALF[table.dtype], (ids, table), (y,), table=first, ids=ids.data_ptr(), y=y.data_ptr(), rows=ids.numel(), width=width,
        count=rows - skip,
    )  # fmt: skip
    return y


def fits_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> bool:
    even = x.is_contiguous() or (x.ndim == 3 and x.shape[0] == 1)
    even = even and (weight is None or weight.shape == x.shape[-weight.ndim :]) and (bias is None or bias.shape == x.shape[-1:])
    return even and taken(x) and slices(x) and fits(weight, bias) and (weight is None or weight.dtype is x.dtype)


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool, offset: bool = False) -> Tensor:
    """Compute the RMSNorm of x [... D], or the LayerNorm if `centred`. offset: multiply by 1 + weight, and round at the end only.

    weight: [D], or one of each group of rows [G D].
    """
    y = fresh(tuple(x.shape), x.dtype)
    reads = tuple(t for t in (x, weight, bias) if t is not None)
    call(
        "norm", HALF[x.dtype], reads, (y,), x=x.data_ptr(), y=y.data_ptr(), weight=address(weight), bias=address(bias), rows=count(x),
        width=x.shape[-1], step=x.shape[-1] if x.is_contiguous() else x.stride(1), eps=eps,
        weights=1 if weight is None else weight.numel() // x.shape[-1], centred=int(centred), offset=int(offset),
    )  # fmt: skip
    return y


def fits_add(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and taken(x) and fits(x, y)


def add(x: Tensor, y: Tensor) -> Tensor:
    """Add x and y, of one shape."""
    z = fresh(tuple(x.shape), x.dtype)
    call("add", HALF[x.dtype], (x, y), (z,), x=x.data_ptr(), y=y.data_ptr(), z=z.data_ptr(), n=x.numel())
    return z


def fits_gate(g: Tensor, up: Tensor | None, act: str) -> bool:
    some = taken(g) or (g.ndim == 2 and 0 < g.shape[0] <= most(ROUTED))
    return some and act in ACTS.keys() | SQUARES.keys() and (up is None or up.shape == g.shape) and fits(g, up)


def gate(g: Tensor, up: Tensor | None, act: str) -> Tensor:
    """Compute act(g) · up, or act(g) if `up` is None."""
    if act in SQUARES:
        act = SQUARES[act]
        up = each(g, up, ACTS[act])
    return each(g, up, ACTS[act])


def each(g: Tensor, up: Tensor | None, act: int, amount: float = 0.0) -> Tensor:
    """Apply function number `act` of rows.h to each number of g, with its parameter `amount`, and multiply by `up` unless None."""
    y = fresh(tuple(g.shape), g.dtype)
    reads = (g,) if up is None else (g, up)
    call("gate", HALF[g.dtype], reads, (y,), g=g.data_ptr(), up=address(up), y=y.data_ptr(), n=g.numel(), act=act, amount=amount)
    return y


def fits_each(x: Tensor) -> bool:
    return taken(x) and fits(x)


def scaled(x: Tensor, factor: float) -> Tensor:
    """Multiply x by a number."""
    return each(x, None, SCALED, factor)


def capped(x: Tensor, cap: float) -> Tensor:
    """Compute cap · tanh(x / cap)."""
    return each(x, None, CAPPED, cap)


def clipped(x: Tensor, most: float) -> Tensor:
    """Compute x, but no less than −most and no more than `most`."""
    return each(x, None, CLIPPED, most)


def fits_xielu(x: Tensor, *weights: Tensor) -> bool:
    return taken(x) and fits(x, *weights)


def xielu(x: Tensor, *weights: Tensor) -> Tensor:
    """Compute xIELU of each number of x. weights: its four numbers, a tensor each."""
    y = fresh(tuple(x.shape), x.dtype)
    alpha_p, alpha_n, beta, eps = (w.data_ptr() for w in weights)
    call(
        "xielu", HALF[x.dtype], (x, *weights), (y,), x=x.data_ptr(), alpha_p=alpha_p, alpha_n=alpha_n, beta=beta, eps=eps, y=y.data_ptr(),
        n=x.numel(),
    )  # fmt: skip
    return y


def sigmoid(x: Tensor) -> Tensor:
    """Compute 1 / (1 + e^-x)."""
    return each(x, None, SIGMOID)


def times(x: Tensor, y: Tensor) -> Tensor:
    """Multiply x and y, of one shape, number by number."""
    return each(x, y, ITSELF)


def fits_gated(x: Tensor, gate: Tensor) -> bool:
    return gate.shape == (*x.shape[:-1], 1) and taken(x) and fits(x, gate)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply each row of x [... D] by the sigmoid of its number, of gate [... 1]."""
    y, rows = fresh(tuple(x.shape), x.dtype), gate.numel()
    call(
        "times", HALF[x.dtype], (x, gate), (y,), x=x.data_ptr(), gate=gate.data_ptr(), positions=0, y=y.data_ptr(), rows=rows,
        width=x.numel() // rows, floor=1, first=0, amount=0.0,
    )  # fmt: skip
    return y


def fits_scale_by_position(x: Tensor, positions: Tensor) -> bool:
    return x.shape[:2] == positions.shape and taken(x) and numbers(positions) and fits(x)


def scale_by_position(x: Tensor, positions: Tensor, first: int, floor: int, amount: float) -> Tensor:
    """Multiply x [B T H K] by 1 + amount · ln(1 + ⌊(p + first) / floor⌋), p of positions [B T]."""
    y, rows = fresh(tuple(x.shape), x.dtype), positions.numel()
    call(
        "times", HALF[x.dtype], (x, positions), (y,), x=x.data_ptr(), gate=0, positions=positions.data_ptr(), y=y.data_ptr(), rows=rows,
        width=x.numel() // rows, floor=floor, first=first, amount=amount,
    )  # fmt: skip
    return y


def fits_angles(positions: Tensor, dtype: torch.dtype) -> bool:
    return 0 < positions.numel() <= most(ROWS) and dtype in HALF and numbers(positions) and fits()


def angles(positions: Tensor, frequencies: Tensor, amount: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cos and sin of positions [B T] times frequencies, times amount. Returns two of [B T 1 R/2] in `dtype`.

    frequencies: [R/2], or each row's own [N R/2]; float64 or float32.
    """
    half = frequencies.shape[-1]
    shape = (*positions.shape, 1, half)
    cos, sin = fresh(shape, dtype), fresh(shape, dtype)
    call(
        "angles", HALF[dtype], (positions, frequencies), (cos, sin), positions=positions.data_ptr(), frequencies=frequencies.data_ptr(),
        cos=cos.data_ptr(), sin=sin.data_ptr(), rows=positions.numel(), half=half, single=int(frequencies.dtype is torch.float32),
        stride=half if frequencies.ndim == 2 else 0, amount=amount,
    )  # fmt: skip
    return cos, sin


def bend(totals: Tensor, lists: Tensor | None, half: int, original: int, theta: float, factor: float) -> Tensor:
    """Compute the frequencies [N R/2], float64, of rows in texts of totals [B T] tokens.

    lists [2 R/2]: the frequencies of texts up to `original`, and of longer ones. Without lists the base grows, as in config.Dynamic.
    """
    y = fresh((totals.numel(), half), torch.float64)
    reads = (totals,) if lists is None else (totals, lists)
    call(
        "bend", 0, reads, (y,), totals=totals.data_ptr(), lists=address(lists), y=y.data_ptr(), rows=totals.numel(), half=half,
        original=original, theta=theta, factor=factor,
    )  # fmt: skip
    return y


def waves(positions: Tensor, width: int, skip: int, over: float, dtype: torch.dtype) -> Tensor:
    """Compute sines and cosines of (positions [B T] + skip) / 10000^(i / over). Returns [B T width]."""
    y = fresh((*positions.shape, width), dtype)
    call(
        "waves", HALF[dtype], (positions,), (y,), positions=positions.data_ptr(), y=y.data_ptr(), rows=positions.numel(), width=width,
        skip=skip, over=over,
    )  # fmt: skip
    return y


def fits_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    even = x.ndim == 4 and (x.shape[0] == 1 or x.stride(0) == x.stride(1) * x.shape[1])
    even = even and cos.shape == sin.shape == (*x.shape[:2], 1, cos.shape[-1]) and 2 * cos.shape[-1] <= x.shape[-1]
    return even and taken(x) and x.dtype is cos.dtype and slices(x) and fits(cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the pairs of the first R channels of x [B T H K] by cos and sin [B T 1 R/2]. The other channels stay."""
    y = fresh(tuple(x.shape), x.dtype)
    B, T, H, K = x.shape
    call(
        "rotate", HALF[x.dtype], (x, cos, sin), (y,), x=x.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr(), y=y.data_ptr(), rows=B * T,
        heads=H, rotary=2 * cos.shape[-1], width=K, row_step=x.stride(1), head_step=x.stride(2), interleaved=int(interleaved),
    )  # fmt: skip
    return y


def fits_argmax(x: Tensor) -> bool:
    return few(x) and fits(x)


def argmax(x: Tensor) -> Tensor:
    """Return the lowest index of the largest value of each row of x [... V]: LongTensor [...]. A NaN is larger than all."""
    y = fresh(tuple(x.shape[:-1]), torch.int64)
    call("argmax", HALF[x.dtype], (x,), (y,), x=x.data_ptr(), to=y.data_ptr(), rows=count(x), width=x.shape[-1])
    return y


def stream(block: Tensor, streams: int = 1) -> None:
    """Read a tensor from end to end, to measure the memory's bandwidth. streams: 1, 2, 4 or 8 places of each 256 KiB in turn."""
    unread = torch.empty(1)
    size = block.numel() * block.element_size()
    call("stream", 0, (block,), (unread,), block=block.data_ptr(), bytes=size, streams=streams, to=unread.data_ptr())
