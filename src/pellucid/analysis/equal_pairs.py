"""Two equal ways to compute one thing, both executed in float64, and a case in which they differ: the reason of a design choice.

A choice names its two ways as a reader writes them, the models that have it, and a specimen for those that do not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.tracing import Trace

EQUAL = 1e-10  # of the largest number: how far apart both ways may be
DIFFERENT = 1e-4  # of the largest number: how far apart they must be in the case


@dataclass(frozen=True, eq=False)
class EqualPair:
    """What both ways gave. one, other: in float64.  case: what they give where they are not equal.

    numbers: of the sentence that says why, besides `gap` and `apart`.
    """

    one: Tensor
    other: Tensor
    case: tuple[Tensor, Tensor]
    numbers: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Return the largest difference of both ways."""
        return largest_gap(self.one, self.other)

    @property
    def apart(self) -> float | str:
        """Return the largest difference in the case; "nan" where a way gives what is no number."""
        gap = largest_gap(*self.case)
        return gap if torch.isfinite(torch.tensor(gap)) else "nan"

    @property
    def holds(self) -> bool:
        """True if both ways are equal and differ in the case."""
        size, (first, _) = float(self.one.abs().max()), self.case
        far = self.apart
        return self.gap <= EQUAL * max(1.0, size) and (isinstance(far, str) or far > DIFFERENT * float(first.abs().max()))

    @property
    def facts(self) -> dict[str, float | str]:
        """Return the numbers of its sentence."""
        return {"gap": self.gap, "apart": self.apart, **self.numbers}

    def in_the_case(self) -> "EqualPair":
        """Return the pair as if its ways were compared in the case."""
        return replace(self, one=self.case[0], other=self.case[1])

    def side_by_side(self, count: int) -> list[tuple[float | str, ...]]:
        """Return numbers of both ways, and of both in the case: `count` cells in a row, about the one that differs most in the case."""
        gaps = (self.case[0] - self.case[1]).abs().flatten().nan_to_num(torch.inf, torch.inf)
        columns = []
        for x in (self.one, self.other, *self.case):
            start = max(0, min(int(gaps.argmax()) - count // 2, x.numel() - count))
            columns.append([shown(v) for v in x.flatten()[start : start + count].tolist()])
        return list(zip(*columns, strict=False))


def shown(value: float) -> float | str:
    """Return a number, or "nan" for what is none."""
    return value if value == value and abs(value) != float("inf") else "nan"


@dataclass(frozen=True)
class Reason:
    """A design choice and what it rests on. ways: both, as a reader writes them.  make(run): computes both over the run of a prompt.

    fits(model): True if the model has it.  specimen: one that has it.
    """

    name: str
    ways: str
    make: Callable[[Trace], EqualPair]
    fits: Callable[[Model], bool] = lambda model: True
    specimen: str = "pellucid/capitals"


def pairs(
    reasons: Sequence[Reason], run: Trace, trace: Callable[[str], Trace], equal: bool = True
) -> Iterator[tuple[Reason, Trace, EqualPair]]:
    """Yield each reason with its pair and the run that it was computed over. run: of the model itself.

    trace(specimen): a run of one, for a reason that the model does not have.  equal: False compares both ways in the case.
    """
    runs = {run.model: run}
    for reason in reasons:
        own = run
        if not reason.fits(run.runner):
            own = runs.get(reason.specimen) or runs.setdefault(reason.specimen, trace(reason.specimen))
        made = reason.make(own)
        yield reason, own, made if equal else made.in_the_case()
