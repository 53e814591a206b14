"""Kinds of layers compared (arXiv 1706.03762, table 1): work, sequential steps, the longest path between two tokens."""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class LayerComplexity:
    """A kind of layer for n tokens of width d: each count with its order. name: a key of the table."""

    name: str
    work: tuple[str, int]
    steps: tuple[str, int]
    path: tuple[str, int]


def compared(n: int, d: int, kernel: int = 3, reach: int = 256) -> list[LayerComplexity]:
    """Return self-attention, recurrence, convolution of this kernel, attention to `reach` neighbours; constants left out.

    A kernel that grows by k a layer needs n / k layers to join the ends of a text; logₖ n are enough where each layer's is spread k times
    as wide as the last one's (dilated; section 4 of the paper).
    """
    convolution = ("k·n·d²", kernel * n * d * d)
    return [
        LayerComplexity("attention", ("n²·d", n * n * d), ("1", 1), ("1", 1)),
        LayerComplexity("recurrent", ("n·d²", n * d * d), ("n", n), ("n", n)),
        LayerComplexity("convolution", convolution, ("1", 1), ("n / k", ceil(n / kernel))),
        LayerComplexity("dilated", convolution, ("1", 1), ("logₖ n", layers(n, kernel))),
        LayerComplexity("restricted", ("r·n·d", min(reach, n) * n * d), ("1", 1), ("n / r", ceil(n / reach))),
    ]


def layers(n: int, kernel: int) -> int:
    """Return the least number of layers, at least 1, for which kernel^layers reaches n tokens."""
    count, reach = 1, kernel
    while reach < n:
        count, reach = count + 1, reach * kernel
    return count
