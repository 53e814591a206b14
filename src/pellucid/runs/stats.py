"""The stats of a tensor's values, in one pass that makes no second copy of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STRIP = 1 << 16  # numbers that are widened at a time: 512 KB, which a core's cache holds


@dataclass(frozen=True)
class Stats:
    """Stats of the finite values, in float64, and the counts of the others. std is the population's."""

    min: float
    max: float
    mean: float
    std: float
    absmax: float
    nan: int
    inf: int
    minus_inf: int = 0  # of the infinite ones


def stats_of(x: Tensor) -> Stats:
    """Compute the stats of a tensor strip by strip; spreads around two means are merged by Chan, Golub and LeVeque's rule."""
    flat = x.detach().reshape(-1)
    low, high, mean, spread, count, nan, inf, minus_inf = math.inf, -math.inf, 0.0, 0.0, 0, 0, 0, 0
    for strip in flat.split(STRIP) if flat.numel() else ():
        wide = strip.to(torch.float64)
        if not math.isfinite(float(wide.sum())):
            fine = wide.isfinite()
            nan, inf = nan + int(wide.isnan().sum()), inf + int(wide.isinf().sum())
            minus_inf += int(wide.isneginf().sum())
            wide = wide[fine]
        if n := wide.numel():
            least, most = wide.aminmax()
            low, high = min(low, float(least)), max(high, float(most))
            gap = float(own := wide.mean()) - mean
            spread += float((wide - own).square_().sum()) + gap * gap * count * n / (count + n)
            mean, count = mean + gap * n / (count + n), count + n
    if not count:
        return Stats(math.nan, math.nan, math.nan, math.nan, math.nan, nan, inf, minus_inf)
    return Stats(low, high, mean, math.sqrt(spread / count), max(abs(low), abs(high)), nan, inf, minus_inf)
