"""How far products of queries and keys spread with the width of a head, and what dividing by its root does."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.tracing import Trace


def products(q: Tensor, k: Tensor) -> Tensor:
    """Return the products of every query q [... T K] with every key k [... S K]: [... T S]."""
    return q.double() @ k.double().transpose(-1, -2)


def drawn_variance(width: int, rows: int = 256, seed: int = 0) -> float:
    """Return the variance of the products of `rows` queries and keys of a width whose numbers are drawn from N(0, 1)."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(rows, width, generator=draw, dtype=torch.float64) for _ in range(2))
    return float(products(q, k).var())


def real_variance(run: Trace, width: int) -> float:
    """Return the variance of the products over the first `width` channels of each head of a run, a mean over blocks and heads."""
    pairs = [(s.value, run[s.path.removesuffix("q") + "k"].value) for s in run if s.path.endswith(".attn.q")]
    variances = []
    for q, k in pairs:
        k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
        variances.append(products(q[..., :width].transpose(1, 2), k[..., :width].transpose(1, 2)).flatten(-2).var(-1).mean())
    return float(torch.stack(variances).mean())


def halvings(width: int) -> list[int]:
    """Return a width, its half and so on down to 1, the smallest first."""
    return sorted({width >> n for n in range(width.bit_length())})


def largest_error(values: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative error of values."""
    return max(abs(v / e - 1) for v, e in zip(values, expected, strict=True))


def scale_of(run: Trace) -> tuple[float, int, float]:
    """Return the factor of the first scores of a run, the width K of a head's key, and how far the factor is from 1 / √K."""
    first = next(s for s in run if s.path.endswith(".attn.scores"))
    scale, width = float(first.settings["scale"]), int(first.settings["width"])
    return scale, width, abs(scale - width**-0.5)
