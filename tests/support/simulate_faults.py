"""Steps that fail: at the n-th call of a function, Python's or C's, an exception is raised before that function begins."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pellucid.engine.scheduler import SchedulerLimits
from simulate import Simulation, submit_some

ENOUGH = 1 << 60
RELEASES = {"__exit__"}  # of a lock: the call that gives it back is the one that cannot fail


class Fault(BaseException):
    """An exception that no code on the way handles."""


@dataclass
class Calls:
    """The number of calls of a step, and whether the fault was raised."""

    count: int = 0
    raised: bool = False


@contextmanager
def fault_at(n: int) -> Iterator[Calls]:
    """Raise a Fault at the n-th call inside the context, which the caller catches. Yields the counted calls."""
    calls = Calls()

    def met(frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            calls.count += 1
            if calls.count >= n and getattr(arg, "__name__", "") not in RELEASES:
                sys.setprofile(None)
                calls.raised = True
                raise Fault

    sys.setprofile(met)
    try:
        yield calls
    finally:
        sys.setprofile(None)


class FaultySimulation(Simulation):
    """A simulation in which some steps fail."""

    def step_with_fault(self, at: int = ENOUGH) -> Calls:
        """Run one step, which fails at call `at`. Returns its calls."""
        outputs = None
        with suppress(Fault), fault_at(at) as calls:
            outputs = self.engine.step()
        if outputs is None:
            self.operations += 1
            return calls
        self.note(outputs)
        if not self.pages.sound(self.kept()):
            self.model.faults.append(f"the books do not balance after a fault at call {at}")
        self.operations += 1
        return calls

    def kept(self) -> dict[int | None, list[int]]:
        """Return the pages that the prefix cache holds, by window."""
        cache = self.engine.storage.cache  # type: ignore[attr-defined]
        return {} if cache is None else {window: [n.pages[window] for n in recent] for window, recent in cache.recent.items()}

    def run_to_end(self) -> "FaultySimulation":
        """Step without faults until all have ended."""
        for _ in range(3000):
            if self.engine.idle:
                return self
            self.step_with_fault()
        self.model.faults.append("it never ends")
        return self


def small_simulation(draw: random.Random) -> FaultySimulation:
    """Return an engine with few pages."""
    size = draw.choice([1, 2, 3, 4, 16])
    limits = SchedulerLimits(draw.choice([1, 2, 5, 16, 64]), draw.choice([3, 4, 8]), draw.choice([2, 50]), draw.random() < 0.1)
    made = Simulation.of(-(-48 // size) + draw.randint(0, 20), size, limits, draw.random() < 0.7)
    return FaultySimulation(made.pages, made.model, made.engine)


def simulate_with_faults(draw: random.Random, often: float = 0.3, steps: int = 40) -> tuple[FaultySimulation, int]:
    """Run a simulation of `steps` steps, some of which fail at a random call. Returns it, and the number that failed."""
    simulation, last, failed = small_simulation(draw), 200, 0
    for _ in range(steps):
        submit_some(draw, simulation)
        calls = simulation.step_with_fault(draw.randint(1, last) if draw.random() < often else ENOUGH)
        failed += calls.raised
        last = max(20, calls.count) if not calls.raised else last
    return simulation.run_to_end(), failed
