"""Which rows of which texts the next step brings: a plain function of who runs, who waits, and what the pages have room for.

a step of 8 rows     a: 1   b: 1   c: 1     those that decode come first, a row each
                     d: 3                   then what is left of prompts, oldest first
                     e: 2 of 40             then new ones, as long as rows and pages last
no page for b        e gives its pages back and will be computed again: the youngest goes first
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from pellucid.engine.requests import Sequence


@dataclass(frozen=True)
class Limits:
    """rows: of one step.  running: texts at once.  waiting: requests in the queue.  whole: a prompt is not cut, and no two share a step."""

    rows: int = 512
    running: int = 64
    waiting: int = 1024
    whole: bool = False


class Storage(Protocol):
    """Where rows are kept (see memory.Memory; a simulation brings its own)."""

    def open(self, sequence: Sequence) -> int:
        """Begin a text; how many of its rows are there already."""

    def room(self, key: Hashable, tokens: int) -> bool:
        """Whether the text can come to so many tokens now; makes room where that is possible without taking from one that runs."""

    def reserve(self, key: Hashable, tokens: int) -> None:
        """Take the pages for it."""

    def fork(self, sequence: Sequence, sibling: Sequence) -> None:
        """Begin a text with all that another holds."""

    def keep(self, sequence: Sequence) -> None:
        """What it has stored may serve others from now on."""

    def close(self, sequence: Sequence) -> None:
        """Give back all that it holds."""

    def outgrown(self, sequence: Sequence) -> bool:
        """Whether a text that runs has become too long for what it stored."""

    def again(self, sequence: Sequence) -> int:
        """Begin such a text again; how many of its rows are there already."""

    def forget(self) -> None:
        """Let nothing of what has ended serve again."""

    def recover(self) -> None:
        """Take back all that any text holds, after a step that failed at any moment."""


@dataclass
class Queue:
    """Who runs, oldest first, and who waits, next first."""

    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)


def schedule(line: Queue, storage: Storage, limits: Limits) -> dict[Sequence, int]:
    """The rows of the next step, {text: how many}, with pages reserved for them. Moves texts between running and waiting."""
    chunks, left = dict[Sequence, int](), limits.rows

    def preempt() -> Sequence:
        """The youngest that runs waits again, first in the queue; what it stored is computed again."""
        nonlocal left
        last = line.running[-1]
        left += chunks.pop(last, 0)
        storage.close(last)
        last.stored, last.scores = 0, []
        line.waiting.appendleft(last)  # first: a text is nowhere at no moment
        line.running.pop()
        return last

    def bring(s: Sequence, rows: int) -> None:
        nonlocal left
        while not storage.room(s.key, s.stored + rows):
            if preempt() is s:
                return
        storage.reserve(s.key, s.stored + rows)
        chunks[s], left = rows, left - rows

    for s in line.running:
        if storage.outgrown(s):
            s.stored = storage.again(s)
    began = list(line.running)
    for s in began:
        if s.owed == 1 and s in line.running and left > 0:
            bring(s, 1)
    for s in began:
        if s.owed > 1 and s in line.running and left > 0 and not whole(s, limits):
            bring(s, min(s.owed, left))
    if len(line.running) == len(began):  # else somebody has just lost his pages, and a new one would take them
        admit(line, storage, limits, chunks)
    return chunks


def admit(line: Queue, storage: Storage, limits: Limits, chunks: dict[Sequence, int]) -> None:
    """Those that wait join, in their order, while there is room for all they have and one more token; of one alone, for its next rows,
    since layers with a window give pages back from chunk to chunk.
    """
    left = limits.rows - sum(chunks.values())
    while line.waiting and left > 0:
        s = line.waiting[0]
        if line.running and sum(1 + r.siblings for r in (*line.running, s)) > limits.running:
            return
        if whole(s, limits) and any(rows > 1 for rows in chunks.values()):
            return
        s.stored = storage.open(s)
        rows = s.owed if whole(s, limits) else min(s.owed, left)
        enough = min(len(s.tokens) + 1, s.request.budget) if line.running else s.stored + rows
        if not storage.room(s.key, enough):
            storage.close(s)
            s.stored = 0
            return
        storage.reserve(s.key, s.stored + rows)
        line.running.append(s)
        line.waiting.popleft()
        chunks[s] = rows
        left -= rows


def whole(s: Sequence, limits: Limits) -> bool:
    """Whether its prompt must come in one step: its tokens see each other both ways."""
    return limits.whole and not s.request.scored
