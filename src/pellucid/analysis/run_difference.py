"""The comparison of two runs of training: the first step at which they part, and the first tensor of it that differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.analysis.difference import Difference, first_difference
from pellucid.api.run import Run
from pellucid.training.replay import COMPARED


@dataclass(frozen=True)
class Parting:
    """The first step at which two runs differ. field: of the log's line.  values: in each run.

    difference: the first tensor of the step that differs, None if all that both have are equal: then the weights part with its update.
    """

    step: int
    field: str
    values: tuple[Any, Any]
    difference: Difference | None


def first_parting(a: Run, b: Run, atol: float = 0.0, rtol: float = 0.0) -> Parting | None:
    """Return the first step that both runs logged and that differs by more than atol + rtol·|a|; None if all agree.

    The step is taken again in both, which needs a state that is kept before it, or the seed.
    """
    others = {entry["step"]: entry for entry in b.log}
    for entry in a.log:
        other = others.get(entry["step"])
        field = None if other is None else differing(entry, other, atol, rtol)
        if other is None or field is None:
            continue
        step = int(entry["step"])
        tensor = first_difference(a.replay(step, gradients=False), b.replay(step, gradients=False), atol, rtol)
        return Parting(step, field, (entry[field], other[field]), tensor)
    return None


def differing(a: Mapping[str, Any], b: Mapping[str, Any], atol: float, rtol: float) -> str | None:
    """Return the first field in which two log lines of a step differ: its documents, its loss, or the size of its gradient."""
    for name in COMPARED:
        if name in a and name in b and not near(a[name], b[name], atol, rtol):
            return name
    return None


def near(x: Any, y: Any, atol: float, rtol: float) -> bool:
    """Return True if two values are equal, or numbers that differ by at most atol + rtol·|x|."""
    numbers = isinstance(x, float) and isinstance(y, float)
    return bool(x == y or (numbers and abs(x - y) <= atol + rtol * abs(x)))
