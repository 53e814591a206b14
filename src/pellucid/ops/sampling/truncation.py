"""Which of a row of numbers may be drawn, and which of them is: the k largest, the nucleus, those near the best, the one behind a draw.

A vocabulary is long and those that matter are few, so they are looked for first, below a bound that leaves none of them out. What is
found by sums goes by sums that are quicker than torch's and not the same to the last bit: where the next boundary is further off than
SURE both say the same, and where it is not, None is said, and torch's sums decide.
"""

from math import inf, log

import numpy as np
import torch
from torch import Tensor

from pellucid.ops import native

FEW = 2048  # numbers that are met one by one
HEIGHTS = (64, 8)  # of the columns whose largest numbers bound the k largest of all
RUN = 512  # numbers that are summed up at a time
LEVELS = 512
SURE = 1e-9  # of the whole; torch's sums are within 1e-10 of these


def above(x: Tensor, least: float) -> Tensor:
    """Where those of x [N] lie that are no less than this, as x holds it; in order."""
    if len(x) > FEW and native.fits_row(x):
        return native.indices_between(x, least, inf)
    return torch.from_numpy(np.flatnonzero(x.numpy() >= least))


def spared(x: Tensor, kept: Tensor, least: float, surplus: int) -> Tensor:
    """What is kept but for the last few of those that equal the least."""
    if not surplus:
        return kept
    equal = native.indices_between(x, least, least).numpy() if len(x) > FEW and native.fits_row(x) else np.flatnonzero(x.numpy() == least)
    return torch.from_numpy(np.delete(kept.numpy(), kept.numpy().searchsorted(equal[-surplus:])))


def largest(x: Tensor, k: int) -> Tensor:
    """Where the k largest of x [N] lie, in order; of equals the earlier. All where k is no less than N."""
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
    """Where those of x [N] lie whose softmax is at least this share of the largest (min-p, arXiv 2407.01082)."""
    return above(x, float(x.numpy().max()) + log(share))


def nucleus(x: Tensor, p: float) -> Tensor:
    """Where the fewest of x [N] lie whose softmax comes to p together, the one that crosses it too, one at least (arXiv 1904.09751)."""
    places = quick_nucleus(x, p)
    if places is not None:
        return places
    values, top = x.numpy(), float(x.max())
    total = float((x.double() - top).exp_().sum())
    for size in (FEW, len(x)):  # mostly it is among the likeliest few
        best = torch.from_numpy(np.sort(values if size >= len(x) else np.partition(values, -size)[-size:])).flip(0)
        mass = (best.double() - top).exp_().cumsum(0)
        if (k := 1 + int(torch.searchsorted(mass, p * total))) <= len(best):
            kept = above(x, float(best[k - 1]))
            return spared(x, kept, float(best[k - 1]), len(kept) - k)
    return torch.arange(len(x))


def quick_nucleus(x: Tensor, p: float) -> Tensor | None:
    """The same by sums over levels, of which the one where p is reached is looked at closely; None where they do not tell."""
    values = x.numpy()
    top, best, before, total = float(values.max()), values, 0.0, None
    if len(x) > FEW:
        if not native.fits_row(x):
            return None
        deep = min(log(len(x) / max(1 - p, 1e-9)) + 1, top - float(values.min()))  # what lies deeper comes to less than 1 - p
        rate = (LEVELS - 2) / max(deep, 1e-6 * (1 + abs(top)))
        sums = native.levels(x, top, LEVELS, rate).cumsum(0).numpy()
        total, level = sums[-1], int(sums.searchsorted(p * sums[-1]))
        if level == LEVELS - 1:
            return None
        before, edge = sums[level - 1] if level else 0.0, 1e-6 * (deep + abs(top))  # more than rounding moves a number
        some = values[native.indices_between(x, top - (level + 1) / rate - edge, top - level / rate + edge).numpy()]
        best = some[native.level(some, top, rate) == level]
    best = np.sort(best)[::-1]
    at = crossing(best - np.float64(top), p, before, total)
    if at is None:
        return None
    least = float(best[at])
    return spared(x, above(x, least), least, int(np.count_nonzero(best[at + 1 :] == best[at])))


def drawn(x: Tensor, u: float, top: float | None = None) -> int | None:
    """The first place of x [N] up to which its softmax sums to more than u; None where sums over runs of it do not tell.

    top: the largest of x, if it is known.
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
    """The first place up to which e^down sums, after what came before, to this share of the whole; None where it is not sure."""
    sums = before + np.exp(down).cumsum()
    total = sums[-1] if total is None else total
    i = int(sums.searchsorted(share * total))
    if i == len(sums) or min(sums[i] - share * total, share * total - (sums[i - 1] if i else before)) <= SURE * total:
        return None
    return i
