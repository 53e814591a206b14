"""Kinds of layers compared (arXiv 1706.03762, table 1): work, steps that must follow one another, the longest path between two tokens."""

from dataclasses import dataclass
from math import ceil, log


@dataclass(frozen=True)
class Kind:
    """A kind of layer for n tokens of width d: each count with its order. name: a key of the table."""

    name: str
    work: tuple[str, int]
    steps: tuple[str, int]
    path: tuple[str, int]


def compared(n: int, d: int, kernel: int = 3, reach: int = 256) -> list[Kind]:
    """Self-attention, recurrent, convolution of this kernel, attention restricted to `reach` neighbours; constants left out."""
    return [
        Kind("attention", ("n²·d", n * n * d), ("1", 1), ("1", 1)),
        Kind("recurrent", ("n·d²", n * d * d), ("n", n), ("n", n)),
        Kind("convolution", ("k·n·d²", kernel * n * d * d), ("1", 1), ("logₖ n", ceil(log(n, kernel)) if n > 1 else 1)),
        Kind("restricted", ("r·n·d", min(reach, n) * n * d), ("1", 1), ("n / r", ceil(n / reach))),
    ]
