"""Truncation of a row of logits to the k largest, the nucleus, or those near the best.

Few numbers of a long vocabulary matter, so a bound below all of them selects candidates first. Without a watch, a kernel does all of it
and draws too, in sums that are faster than these; where it is not sure, these decide (ops/native/sample.h).
"""

from math import inf, log

import numpy as np
import torch
from torch import Tensor

from pellucid.ops import native

FEW = 2048  # numbers up to which plain numpy is fast enough
HEIGHTS = (64, 8)  # of the columns whose maxima bound the k largest of all


def above(x: Tensor, least: float) -> Tensor:
    """Return the indices of the numbers of x [N] that are at least `least`, rounded to x's dtype."""
    if len(x) > FEW and native.fits_row(x):
        return native.indices_between(x, least, inf)
    return torch.from_numpy(np.flatnonzero(x.numpy() >= least))


def spared(x: Tensor, kept: Tensor, least: float, surplus: int) -> Tensor:
    """Return `kept` without its last `surplus` ties at `least`."""
    if not surplus:
        return kept
    equal = native.indices_between(x, least, least).numpy() if len(x) > FEW and native.fits_row(x) else np.flatnonzero(x.numpy() == least)
    return torch.from_numpy(np.delete(kept.numpy(), kept.numpy().searchsorted(equal[-surplus:])))


def largest(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest of x [N], in order of index; of ties the earlier. All of them if k is at least N."""
    if k >= len(x):
        return torch.arange(len(x))
    if k == 0:
        return torch.arange(0)
    values = x.numpy()
    height = next((h for h in HEIGHTS if 2 * k * h <= len(x)), 1)
    width = len(x) // height
    columns = values if height == 1 else values[: height * width].reshape(height, width).max(0)
    at = above(x, float(np.partition(columns, width - k)[width - k]))  # k columns have a number as large, so k numbers are
    few = values[at.numpy()]
    least = np.partition(few, len(few) - k)[len(few) - k]
    kept = at[torch.from_numpy(np.flatnonzero(few >= least))]
    return spared(x, kept, float(least), len(kept) - k)


def near(x: Tensor, share: float) -> Tensor:
    """Return the indices of x [N] whose softmax is at least `share` of the largest one (min-p, arXiv 2407.01082)."""
    return above(x, float(x.numpy().max()) + log(share))


def nucleus(x: Tensor, p: float) -> Tensor:
    """Return the indices of the fewest numbers of x [N] whose softmax sums to at least p; at least one (top-p, arXiv 1904.09751)."""
    values, top = x.numpy(), float(x.max())
    total = float((x.double() - top).exp_().sum())
    for size in (FEW, len(x)):  # the nucleus mostly lies within the FEW largest
        best = torch.from_numpy(np.sort(values if size >= len(x) else np.partition(values, -size)[-size:])).flip(0)
        mass = (best.double() - top).exp_().cumsum(0)
        if (k := 1 + int(torch.searchsorted(mass, p * total))) <= len(best):
            kept = above(x, float(best[k - 1]))
            return spared(x, kept, float(best[k - 1]), len(kept) - k)
    return torch.arange(len(x))
