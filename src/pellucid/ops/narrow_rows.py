"""The product of narrow rows, some at a time, on a processor; and its gradient.

torch adds up in float32, in memory of its own as large as the result's: for the logits of 4,096 rows of 50,304 ids in bfloat16 that are
0.8 GB beside 0.4. A row's sum knows nothing of the other rows, so its bits are those of the product of all.

Where a processor has no products of a dtype, torch's take seven to forty times those of float32: there the factors are widened, a part
at a time, multiplied in float32, and each sum is rounded once.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from pellucid.ops.precision import wide

ROWS, COLUMNS = 512, 8192
LARGE = 1 << 24  # numbers of a result whose sums are worth holding in parts: 64 MB
WIDENED = 512  # rows, columns and terms that are widened at a time: 1 MB of each factor
FEW = 32  # rows; for fewer, widening a weight takes as long as torch's product


class NarrowRows(torch.autograd.Function):
    """x [N in] times weight [out in], and bias [out] if there is one. Returns [N out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)  # under a frozen matrix, nothing keeps x
        y = x.new_empty(len(x), len(weight))
        if not multiplied(x.dtype):
            return widened(y, x, weight.t(), bias)
        for some, to in zip(x.split(ROWS), y.split(ROWS), strict=True):
            torch.mm(some, weight.t(), out=to) if bias is None else torch.addmm(bias, some, weight.t(), out=to)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (y,), (x, weight) = gradients, ctx.saved_tensors
        of_x = None if weight is None else times_weight(y, weight)
        return of_x, None if x is None else times_rows(y, x), y.sum(0) if ctx.needs_input_grad[2] else None


def times_weight(y: Tensor, weight: Tensor) -> Tensor:
    """Multiply the gradient y [N out] by weight [out in]. Returns [N in]."""
    return y @ weight if multiplied(y.dtype) else widened(y.new_empty(len(y), weight.shape[1]), y, weight)


def times_rows(y: Tensor, x: Tensor) -> Tensor:
    """Multiply the gradient y [N out], on its side, by x [N in]. Returns [out in]."""
    out = y.new_empty(y.shape[1], x.shape[1])
    if not multiplied(y.dtype):
        return widened(out, y.t(), x)
    for some, to in zip(y.split(COLUMNS, 1), out.split(COLUMNS), strict=True):
        torch.mm(some.t(), x, out=to)
    return out


def widened(out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Write a [M K] times b [K N], plus bias [N], into out [M N], added up in float32. Returns it."""
    w = wide(out.dtype)
    for columns in pieces(out.shape[1]):
        for rows in pieces(len(out)):
            to = out[rows, columns]
            total = torch.zeros(to.shape, dtype=w) if bias is None else bias[columns].to(w).repeat(len(to), 1)
            for some in pieces(a.shape[1]):
                total.addmm_(a[rows, some].to(w), b[some, columns].to(w))
            to.copy_(total)
    return out


def pieces(size: int) -> Iterator[slice]:
    """Yield the places 0 .. size − 1, WIDENED at a time."""
    for at in range(0, size, WIDENED):
        yield slice(at, min(at + WIDENED, size))


@cache
def multiplied(dtype: torch.dtype) -> bool:
    """Say whether this processor has products of a narrow dtype, which torch's library uses."""
    if not torch.backends.mkldnn.is_available():
        return False
    known = torch.ops.mkldnn._is_mkldnn_bf16_supported if dtype is torch.bfloat16 else torch.ops.mkldnn._is_mkldnn_fp16_supported
    return bool(known())


def fits(x: Tensor, weight: Tensor) -> bool:
    """Say whether the product of x [... in] and weight [out in] is one to take some rows at a time."""
    if not (type(x) is Tensor and type(weight) in (Tensor, nn.Parameter) and x.device.type == "cpu" and x.dtype.itemsize == 2):
        return False
    rows = x.shape[:-1].numel()
    fitting = rows * len(weight) >= LARGE or (rows >= FEW and not multiplied(x.dtype))
    return fitting and not (dual(x) or dual(weight))


def dual(x: Tensor) -> bool:
    """Say whether x carries a tangent. A jvp of NarrowRows would need x and the weight, and keep both until the backward pass."""
    return forward_ad.unpack_dual(x).tangent is not None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x [... in] by weight [out in], and add bias [out]. Returns [... out]."""
    y: Tensor = NarrowRows.apply(x.flatten(0, -2), weight, bias)
    return y.view(*x.shape[:-1], -1)
