"""The product of many narrow rows, some at a time, on a processor; and its gradient.

Its library adds up in float32, in memory of its own as large as the result's: for the logits of 4,096 rows of 50,304 ids in bfloat16 that
are 0.8 GB beside 0.4. A row's sum knows nothing of the other rows, so its bits are those of the product of all.
"""

from typing import Any

import torch
from torch import Tensor, nn

ROWS, COLUMNS = 512, 8192
LARGE = 1 << 24  # numbers of a result whose sums are worth holding in parts: 64 MB


class NarrowRows(torch.autograd.Function):
    """x [N in] times weight [out in], and bias [out] if there is one. Returns [N out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = x.new_empty(len(x), len(weight))
        for some, to in zip(x.split(ROWS), y.split(ROWS), strict=True):
            torch.mm(some, weight.t(), out=to) if bias is None else torch.addmm(bias, some, weight.t(), out=to)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (y,), (x, weight), needs = gradients, ctx.saved_tensors, ctx.needs_input_grad
        of_weight = torch.empty_like(weight) if needs[1] else None
        if of_weight is not None:
            for some, to in zip(y.split(COLUMNS, 1), of_weight.split(COLUMNS), strict=True):
                torch.mm(some.t(), x, out=to)
        return y @ weight if needs[0] else None, of_weight, y.sum(0) if needs[2] else None


def fits(x: Tensor, weight: Tensor) -> bool:
    """Say whether the product of x [... in] and weight [out in] is one to take some rows at a time."""
    plain = type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)
    return plain and x.device.type == "cpu" and x.dtype.itemsize == 2 and x.shape[:-1].numel() * len(weight) >= LARGE


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x [... in] by weight [out in], and add bias [out]. Returns [... out]."""
    y: Tensor = NarrowRows.apply(x.flatten(0, -2), weight, bias)
    return y.view(*x.shape[:-1], -1)
