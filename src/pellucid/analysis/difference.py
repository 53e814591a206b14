"""The comparison of two traces: the first tensor in which they differ."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.arguments import checked
from pellucid.errors import TraceError
from pellucid.tracing import Trace
from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch


@dataclass(frozen=True)
class Difference:
    """The first path whose tensors differ by more than allowed."""

    path: str
    step: int
    largest: float  # the largest difference of a cell; inf where shapes differ
    index: tuple[int, ...]
    values: tuple[float, float]


@checked
def first_difference(a: Trace | Watch, b: Trace | Watch, atol: float = 0.0, rtol: float = 0.0) -> Difference | None:
    """Return the first record of `a` that `b` has too and that differs by more than atol + rtol·|a|; None if all agree.

    Two traces with no path in common are an error: agreement about nothing says nothing.
    """
    others = keyed(b)
    shared = [(s, others[key]) for key, s in keyed(a).items() if key in others]
    if not shared:
        raise TraceError("diff.nothing")
    for x, y in shared:
        if x.shape != y.shape:
            return Difference(x.path, x.step, float("inf"), (), (float(len(x.shape)), float(len(y.shape))))
        u, v = x.value.double(), y.value.double()
        gap = apart(u, v)
        near = gap.isfinite() & (gap <= atol + rtol * u.abs())
        over = gap.masked_fill(near | (gap == 0), -1.0)
        if bool((over >= 0).any()):
            at = tuple(int(i) for i in torch.unravel_index(over.argmax(), over.shape))
            return Difference(x.path, x.step, float(over.max()), at, (float(u[at]), float(v[at])))
    return None


def apart(u: Tensor, v: Tensor) -> Tensor:
    """Return the difference of each cell of two float64 tensors. NaN in both counts as equal, in one alone as infinite."""
    return (u - v).abs().masked_fill((u == v) | (u.isnan() & v.isnan()), 0.0).nan_to_num(float("inf"), float("inf"))


def keyed(records: Trace | Watch) -> dict[tuple[object, ...], Seen]:
    """Return records by path, step, call and request; a single request's name is left out, as in a batch."""
    several = len({s.request for s in records} - {None}) > 1
    return {(s.path, s.step, s.call, s.request if several else None): s for s in records}
