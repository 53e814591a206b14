"""Measures of the rows of a recorded tensor: their length, how alike they are, how spread attention is."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pellucid.analysis.lens import stream as of_module
from pellucid.tracing import Trace
from pellucid.watching.records import Seen


def mean_size(x: Tensor) -> float:
    """Return the mean length of the rows of x [... D]."""
    return float(x.double().norm(dim=-1).mean())


def likeness(x: Tensor) -> float | None:
    """Return the mean cosine between different rows of x [1 T D]: 1 if all point one way. None for one row."""
    rows = torch.nn.functional.normalize(x[0].double(), dim=-1)
    n = len(rows)
    return None if n < 2 else float((rows @ rows.T).sum() - n) / (n * (n - 1))


def entropy(pattern: Tensor) -> list[float]:
    """Return the mean entropy of each head's rows of a pattern [B H T S], in bits: 0 if a query looks at one key."""
    share = pattern.double()
    bits: list[float] = torch.special.entr(share).sum(-1).div(torch.log(share.new_tensor(2.0))).mean((0, 2)).tolist()
    return bits


def on_future(pattern: Tensor) -> list[float]:
    """Return the share of each head's first row of a pattern [1 H T S] that lies on later tokens."""
    shares: list[float] = pattern[0, :, 0, 1:].double().sum(-1).tolist()
    return shares


def stream(run: Trace) -> list[Seen]:
    """Return the residual stream of a run's first step: what enters the first block, and what leaves each."""
    return of_module(run.runner.module, [s for s in run if s.step == 0])


def plane_of(x: Tensor) -> tuple[Tensor, int]:
    """Return rows x [N D] on their first two directions [N 2], from their mean, and the share of these directions in percent.

    Rows that are all equal, as those of a table that does not train, have nothing that a plane would leave out: 100.
    """
    centred = x - x.mean(0)
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    squares = sizes**2
    share = float(squares[:2].sum() / squares.sum()) if squares.any() else 1.0
    return centred @ directions[:2].T, round(100 * share)


def largest_gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of a cell of two tensors of one shape."""
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def mean(values: Iterable[float]) -> float:
    """Return the mean of numbers."""
    numbers = list(values)
    return sum(numbers) / len(numbers)
