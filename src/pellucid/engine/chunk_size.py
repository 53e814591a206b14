"""How many rows of prompts run beside sequences that decode: as many as keep a step short, by the times of the last ones.

    all decode         0.046 s              a burst brings its tokens after 0.1 s
    and   8 rows       0.104 s    0.0073 s a row
    and  16 rows       0.112 s    0.0041 s a row
    and  80 rows       0.178 s    within twice 0.1 s

A text does not depend on the chunks of any prompt, so that times decide when tokens come and not which.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pellucid.engine.bursts import STREAMED
from pellucid.engine.requests import Sequence

LEAST = 8  # rows
AGAIN = 16  # steps beside prompts, after which one step shows again what decoding takes
MARGIN = 0.9  # of the time that the limit leaves, since rows further on in a prompt take longer
WEIGHT = 0.5  # of the newest step's time


class Timing(NamedTuple):
    """A step that runs. decoding: its sequences that decode, with `stored` rows.  rows: of prompts.  proposed: True with proposals."""

    decoding: list[Sequence]
    rows: int
    stored: int
    proposed: bool
    began: float


class ChunkSize:
    """The most rows of prompts in a step in which other sequences decode.

    most: rows of any step.
    stall: such a step takes at most this many times as long as a burst does, or a step in which all decode if that is longer; None: any
    time.
    """

    def __init__(self, most: int, stall: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most, self.stall, self.clock = most, stall, clock
        self.decode: float | None = None  # seconds of a step in which all decode
        self.row: float | None = None  # seconds that a prompt's row adds to it
        self.largest = LEAST  # rows of a step that was timed
        self.since = 0  # steps with rows of prompts after `decode` was timed

    @property
    def rows(self) -> int:
        """Return the most rows of prompts in the next step. 0: it shows what decoding alone takes."""
        if self.stall is None:
            return self.most
        if self.decode is None or self.since >= AGAIN:
            return 0
        if self.row is None:
            return LEAST
        spare = MARGIN * (self.stall * max(self.decode, STREAMED) - self.decode)
        most = min(2 * self.largest, self.most)  # at most doubled: how a row's time grows is not known beyond
        return max(LEAST, int(spare / self.row)) if most * self.row > spare else most

    def begin(self, chunks: Mapping[Sequence, int]) -> Timing | None:
        """Begin to time a step of `chunks`, {sequence: rows}. None: nothing is to be learnt from it."""
        if self.stall is None:
            return None
        decoding = [s for s in chunks if s.written and s.pending == 1]
        rows = sum(n for s, n in chunks.items() if s.pending > 1)
        return Timing(decoding, rows, sum(s.stored for s in decoding), any(s.proposed for s in decoding), self.clock())

    def end(self, step: Timing | None) -> None:
        """Learn from a step that has ended."""
        if step is not None and step.decoding:
            stored = (sum(s.stored for s in step.decoding) - step.stored) // len(step.decoding)
            steps = 1 if step.proposed else max(1, stored)  # a burst stores a row of each sequence in each of its steps
            self.took(step.rows, (self.clock() - step.began) / steps)

    def took(self, rows: int, seconds: float) -> None:
        """Learn from a step in which sequences decode, and `rows` rows of prompts run."""
        if rows == 0:
            self.decode = seconds if self.decode is None else self.decode + WEIGHT * (seconds - self.decode)
            self.since = 0
            return
        self.since += 1
        if self.decode is not None and rows >= LEAST:
            added = max(0.0, seconds - self.decode) / rows
            self.row = added if self.row is None else self.row + WEIGHT * (added - self.row)
            self.largest = max(self.largest, rows)
