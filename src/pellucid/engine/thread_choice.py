"""How many threads compute a decode step: all of torch's, and on a busy machine as many as are measured to be fastest.

    quiet   2 2 2 2 2 2 ...                     one look at the system's own books a second
    busy    2 1 2 1 2 1 2 1 2 1  1 1 1 1 ...    steps in turn, then the fastest number for a while; then again

Threads that wait for a core hold up a step: a kernel's pieces belong to no thread, but the last one begun must end. The bits of a native
kernel do not depend on the number of threads.
"""

import time
from collections.abc import Callable

import torch

from pellucid.bench.idle import Watchman

LOOK = 1.0  # seconds between two looks at the machine
KEPT = 10.0  # seconds that a measured number holds
BUSY = 0.2  # of the processors, taken by others
TRIES = 5  # steps of each number
MARGIN = 0.9  # fewer threads must take at most this share of the time of all


def numbers(most: int) -> list[int]:
    """Return the numbers of threads that are tried: all, and halves down to one."""
    out = [most]
    while out[-1] > 1:
        out.append(out[-1] // 2)
    return out


class ThreadChoice:
    """The number of threads of the next step, and the times of the last ones.

    share: of the processors that others took at the last look, 0 if the system does not tell.  watchman: makes a reader of that share.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, watchman: Callable[[], Watchman] = Watchman) -> None:
        self.clock, self.watchman = clock, watchman
        self.share = 0.0
        self.fastest: int | None = None  # as measured; None: all
        self.trials: dict[int, list[float]] = {}  # seconds of a step by the number of threads, while they are measured
        self.rows = 0  # of the steps that are measured
        self.reader, self.due = watchman(), clock() + LOOK

    @property
    def most(self) -> int:
        """Return torch's number of threads."""
        return torch.get_num_threads()

    def number(self, rows: int) -> int:
        """Return the number of threads for a step of `rows` rows. 0 rows: a step that is not measured."""
        if self.most > 1 and self.clock() >= self.due:
            self.read_share()
        if rows and self.trials:
            if rows != self.rows:
                self.rows, self.trials = rows, {n: [] for n in numbers(self.most)}
            return min(self.trials, key=lambda n: len(self.trials[n]))  # the first of those with the fewest: in turn
        return min(self.fastest or self.most, self.most)

    def read_share(self) -> None:
        """Ask the system what others took since the last look: begin to measure on a busy machine, use all threads on a quiet one."""
        now = self.watchman()
        self.share, self.reader, self.due = self.reader.until(now) or 0.0, now, self.clock() + LOOK
        if self.share <= BUSY:
            self.fastest, self.trials = None, {}
        elif not self.trials:
            self.rows, self.trials = 0, {n: [] for n in numbers(self.most)}

    def took(self, threads: int, seconds: float) -> None:
        """Note the seconds of a measured step. The last trial decides, for a while."""
        if threads not in self.trials:
            return
        self.trials[threads].append(seconds)
        if all(len(times) >= TRIES for times in self.trials.values()):
            cost = {n: sum(times) for n, times in self.trials.items()}
            best = min(cost, key=cost.__getitem__)
            self.fastest = best if cost[best] <= MARGIN * cost[self.most] else None
            self.trials, self.due = {}, self.clock() + KEPT
