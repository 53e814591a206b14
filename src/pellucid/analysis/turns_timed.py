"""Milliseconds of several ways to compute, measured in turn, so that what else the machine does falls on all of them."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pellucid.bench.machine_limits import timed

Name = TypeVar("Name")
TURNS = 7


@dataclass(frozen=True)
class Milliseconds:
    """The fastest turn and the median of all. On a busy machine they are far apart."""

    fastest: float
    median: float


def in_turn(runs: Mapping[Name, Callable[[], object]], turns: int = TURNS) -> dict[Name, Milliseconds]:
    """Time every run once a turn, after one turn that is not counted."""
    for run in runs.values():
        run()
    taken: dict[Name, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            taken[name].append(1e3 * timed(run))
    return {name: Milliseconds(min(times), statistics.median(times)) for name, times in taken.items()}
