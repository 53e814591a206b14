"""Fast twins for a draw from one row over a whole vocabulary: float32 logits [N], whose sums are taken in float64.

A sum of `masses` is exact to 1e-12 of itself, so a choice made with a margin is the same in any arithmetic.
"""

import numpy as np
import torch
from torch import Tensor

from pellucid.ops.native.library import call
from pellucid.ops.native.twins import fits
from pellucid.ops.precision import wide

SHARE = 1 << 14  # numbers that one thread sums up in a go


def fits_row(x: Tensor) -> bool:
    return x.ndim == 1 and x.dtype is wide(torch.bfloat16) and len(x) > 0 and fits(x)


def cooled(x: Tensor, top: float, by: float) -> Tensor:
    """(x - top) / by, each rounded."""
    y = torch.empty_like(x)
    call("cool", 0, (x,), (y,), x=x.data_ptr(), y=y.data_ptr(), n=len(x), top=top, by=by)
    return y


def indices_between(x: Tensor, low: float, high: float) -> Tensor:
    """Where those of x [N] lie that are no less than low and no more than high, in order; both as float32 holds them."""
    to, count = torch.empty(len(x), dtype=torch.long), torch.empty(1, dtype=torch.long)
    call(
        "indices_between", 0, (x,), (to, count),
        x=x.data_ptr(), to=to.data_ptr(), count=count.data_ptr(), n=len(x), low=low, high=high,
    )  # fmt: skip
    return to[: int(count)]


def masses(x: Tensor, top: float, size: int) -> Tensor:
    """Sum e^(x - top) over each run of `size` numbers of x [N], none larger than top: float64."""
    y = torch.empty(-(-len(x) // size), dtype=torch.float64)
    call("masses", 0, (x,), (y,), x=x.data_ptr(), to=y.data_ptr(), n=len(x), size=size, levels=0, top=top, rate=1.0)
    return y


def levels(x: Tensor, top: float, count: int, rate: float) -> Tensor:
    """The sum of e^(x - top) over each level of x [N], `rate` of them to a unit: float64 [count]. The last holds all that lies lower."""
    y = torch.empty((-(-len(x) // SHARE), count), dtype=torch.float64)
    call("masses", 0, (x,), (y,), x=x.data_ptr(), to=y.data_ptr(), n=len(x), size=SHARE, levels=count, top=top, rate=rate)
    return y.sum(0)


def level(values: np.ndarray, top: float, rate: float) -> np.ndarray:
    """The level of each, as the kernel finds it."""
    return ((np.float32(top) - values) * np.float32(rate)).astype(np.int32)
