"""Fast twins for a draw from the logits of a vocabulary: float32 [N], summed in float64.

A sum of `masses` has a relative error below 1e-12, so a choice with a larger margin is the same in any arithmetic.
"""

import numpy as np
import torch
from torch import Tensor

from pellucid.ops.native.library import call
from pellucid.ops.native.twins import fits
from pellucid.ops.precision import wide

SHARE = 1 << 14  # numbers in a piece of work


def fits_row(x: Tensor) -> bool:
    return x.ndim == 1 and x.dtype is wide(torch.bfloat16) and len(x) > 0 and fits(x)


def cooled(x: Tensor, top: float, by: float) -> Tensor:
    """Compute (x - top) / by, rounding the difference and the quotient."""
    y = torch.empty_like(x)
    call("cool", 0, (x,), (y,), x=x.data_ptr(), y=y.data_ptr(), n=len(x), top=top, by=by)
    return y


def indices_between(x: Tensor, low: float, high: float) -> Tensor:
    """Return the indices of the numbers of x [N] from low to high, both included and rounded to float32."""
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
    """Sum e^(x - top) over each level of x [N], 1 / rate high, from top down: float64 [count]. The last level takes all lower numbers."""
    y = torch.empty((-(-len(x) // SHARE), count), dtype=torch.float64)
    call("masses", 0, (x,), (y,), x=x.data_ptr(), to=y.data_ptr(), n=len(x), size=SHARE, levels=count, top=top, rate=rate)
    return y.sum(0)


def level(values: np.ndarray, top: float, rate: float) -> np.ndarray:
    """Return the level of each number, with the kernel's arithmetic."""
    return ((np.float32(top) - values) * np.float32(rate)).astype(np.int32)
