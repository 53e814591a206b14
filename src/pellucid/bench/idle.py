"""Whether a machine was idle during a measurement: on a busy one times are shown, but no verdict on them.

others      what other processes took of the processors, from the system's own books: 0.0 of an idle machine, None where it does not tell
steadiness  of rates that were measured again and again, median over best, of the least steady one
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.bench.machine_limits import MachineLimits

TABLE = Path("/proc/stat")
MOST = 0.1  # of the processors, taken by others
LEAST = 0.5  # median over best
IDLE = (3, 4)  # columns of the table: idle, and waiting for a disk


@dataclass(frozen=True)
class Idle:
    """The load of other processes, and how steady the rates were."""

    others: float | None
    steadiness: float

    @property
    def quiet(self) -> bool:
        """True if a ratio of time and bound is meaningful."""
        return (self.others is None or self.others <= MOST) and self.steadiness >= LEAST


@dataclass
class Watchman:
    """A reader of the system's processor times, when it is made and when asked; what was not this process's is others'."""

    began: tuple[float, float] | None = field(default_factory=lambda: used())
    own: float = field(default_factory=lambda: time.process_time())

    def others(self) -> float | None:
        """Return the share of the processors' time that other processes took since it was made."""
        return self.until(Watchman())

    def until(self, later: "Watchman") -> float | None:
        """Return the share that they took until `later` was made."""
        if self.began is None or later.began is None or later.began[1] <= self.began[1]:
            return None
        busy, total = (b - a for a, b in zip(self.began, later.began, strict=True))
        return min(1.0, max(0.0, busy - (later.own - self.own)) / total)

    def verdict(self, limits: "MachineLimits") -> Idle:
        """Return the verdict on a measurement that ends now."""
        return Idle(self.others(), min(r.median / r.best for r in (*limits.read.values(), *limits.product.values())))


def used() -> tuple[float, float] | None:
    """Return (busy, total) seconds of all processors that this process may use, since boot; None if unknown."""
    try:
        lines = TABLE.read_text(encoding="ascii").splitlines()
        tick = os.sysconf("SC_CLK_TCK")
        mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    except (OSError, ValueError, AttributeError):
        return None
    rows = [[int(n) for n in numbers[:8]] for name, *numbers in map(str.split, lines) if name in mine]
    total = sum(map(sum, rows))
    return ((total - sum(row[i] for row in rows for i in IDLE)) / tick, total / tick) if total else None
