"""Whether a machine was idle but for what was measured: on a busy one, times stand, and no verdict on them does.

others      what other processes took of the processors, from the system's own books: 0.0 of an idle machine, None where it does not tell
steadiness  of rates that were measured again and again, median over best, of the least steady one
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from pellucid.bench.machine_limits import MachineLimits

TABLE = Path("/proc/stat")
MOST = 0.1  # of the processors, taken by others
LEAST = 0.5  # median over best
IDLE = (3, 4)  # columns of the table: idle, and waiting for a disk


@dataclass(frozen=True)
class Idle:
    """What others took, and how steady the rates were."""

    others: float | None
    steadiness: float

    @property
    def quiet(self) -> bool:
        """Whether a ratio of a time and a bound says something of the model."""
        return (self.others is None or self.others <= MOST) and self.steadiness >= LEAST


@dataclass
class Watchman:
    """Looks at the system's books when it is made and when it is asked; between the two, what was not of this process is others'."""

    began: tuple[float, float] | None = field(default_factory=lambda: used())
    own: float = field(default_factory=time.process_time)

    def others(self) -> float | None:
        """The part of the processors' time that others took since."""
        now, own = used(), time.process_time() - self.own
        if self.began is None or now is None or now[1] <= self.began[1]:
            return None
        busy, total = (b - a for a, b in zip(self.began, now, strict=True))
        return min(1.0, max(0.0, busy - own) / total)

    def verdict(self, limits: MachineLimits) -> Idle:
        """Of a measurement that ends here."""
        return Idle(self.others(), min(r.median / r.best for r in (*limits.read.values(), *limits.product.values())))


def used() -> tuple[float, float] | None:
    """Seconds of all processors that this process may use, since the system began: busy, and in all. None where it does not tell."""
    try:
        lines = TABLE.read_text(encoding="ascii").splitlines()
        tick = os.sysconf("SC_CLK_TCK")
        mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    except (OSError, ValueError, AttributeError):
        return None
    rows = [[int(n) for n in numbers[:8]] for name, *numbers in map(str.split, lines) if name in mine]
    total = sum(map(sum, rows))
    return ((total - sum(row[i] for row in rows for i in IDLE)) / tick, total / tick) if total else None
