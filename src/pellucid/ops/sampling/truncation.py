"""Truncation of a row of logits to the k largest, the nucleus, or those near the best; and the index of a draw.

Few numbers of a long vocabulary matter, so a bound below all of them selects candidates first. Sums are taken by runs or levels, faster
than torch's and different in the last bits. If the next boundary is further away than SURE, both give the same index; otherwise the
quick function returns None, and torch's sums decide.
"""

from math import inf, log

import numpy as np
import torch
from torch import Tensor

from pellucid.ops import native

FEW = 2048  # numbers up to which plain numpy is fast enough
HEIGHTS = (64, 8)  # of the columns whose maxima bound the k largest of all
RUN = 512  # numbers in one sum
LEVELS = 512
SURE = 1e-9  # of the total; torch's sums differ by less than 1e-10


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
    places = quick_nucleus(x, p)
    if places is not None:
        return places
    values, top = x.numpy(), float(x.max())
    total = float((x.double() - top).exp_().sum())
    for size in (FEW, len(x)):  # the nucleus mostly lies within the FEW largest
        best = torch.from_numpy(np.sort(values if size >= len(x) else np.partition(values, -size)[-size:])).flip(0)
        mass = (best.double() - top).exp_().cumsum(0)
        if (k := 1 + int(torch.searchsorted(mass, p * total))) <= len(best):
            kept = above(x, float(best[k - 1]))
            return spared(x, kept, float(best[k - 1]), len(kept) - k)
    return torch.arange(len(x))


def quick_nucleus(x: Tensor, p: float) -> Tensor | None:
    """Find the nucleus by sums over levels, then within the level that crosses p. None if a sum is too near p to be sure."""
    values = x.numpy()
    top, best, before, total = float(values.max()), values, 0.0, None
    if len(x) > FEW:
        if not native.fits_row(x):
            return None
        deep = min(log(len(x) / max(1 - p, 1e-9)) + 1, top - float(values.min()))  # all deeper numbers sum to less than 1 - p
        rate = (LEVELS - 2) / max(deep, 1e-6 * (1 + abs(top)))
        sums = native.levels(x, top, LEVELS, rate).cumsum(0).numpy()
        total, level = sums[-1], int(sums.searchsorted(p * sums[-1]))
        if level == LEVELS - 1:
            return None
        before, edge = sums[level - 1] if level else 0.0, 1e-6 * (deep + abs(top))  # more than a rounding error
        some = values[native.indices_between(x, top - (level + 1) / rate - edge, top - level / rate + edge).numpy()]
        best = some[native.level(some, top, rate) == level]
    best = np.sort(best)[::-1]
    at = crossing(best - np.float64(top), p, before, total)
    if at is None:
        return None
    least = float(best[at])
    return spared(x, above(x, least), least, int(np.count_nonzero(best[at + 1 :] == best[at])))


def drawn(x: Tensor, u: float, top: float | None = None) -> int | None:
    """Return the first index of x [N] at which the running sum of its softmax exceeds u. None if a sum is too near u to be sure.

    top: the largest of x, if known.
    """
    values = x.numpy()
    top, start, before, total = np.float64(values.max() if top is None else top), 0, 0.0, None
    if len(x) > FEW:
        if not native.fits_row(x):
            return None
        sums = native.masses(x, float(top), RUN).cumsum(0).numpy()
        total, run = sums[-1], int(sums.searchsorted(u * sums[-1]))
        start, before = run * RUN, sums[run - 1] if run else 0.0
        values = values[start : start + RUN]
    at = crossing(values - top, u, before, total)
    return None if at is None else start + at


def crossing(down: np.ndarray, share: float, before: float, total: float | None) -> int | None:
    """Return the first index at which `before` plus the running sum of e^down exceeds share · total. None if a sum is too near it.

    total: by default the last sum.
    """
    sums = before + np.exp(down).cumsum()
    total = sums[-1] if total is None else total
    i = int(sums.searchsorted(share * total))
    if i == len(sums) or min(sums[i] - share * total, share * total - (sums[i - 1] if i else before)) <= SURE * total:
        return None
    return i
