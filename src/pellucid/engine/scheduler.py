"""The scheduler: the rows of the next step, as a function of the queue and the free pages.

a step of 8 rows     a: 1   b: 1   c: 1     decoding sequences first, a row each
                     d: 3                   then the rest of prompts, oldest first
                     e: 2 of 40             then new sequences, as long as rows and pages last
no page for b        e is preempted: it gives its pages back and will be computed again; the youngest goes first
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from pellucid.engine.bursts import STEPS
from pellucid.engine.requests import Sequence


@dataclass(frozen=True)
class SchedulerLimits:
    """The limits of a step. rows: in one step.  running: sequences at once.  waiting: requests in the queue.  burst: steps at once.

    whole_prompts: True if a prompt runs in one step, and no two share one.
    stall: a step with a prompt's chunk takes at most this many times as long as a burst, or a step in which all decode; None: any time.
    """

    rows: int = 512
    running: int = 64
    waiting: int = 1024
    whole_prompts: bool = False
    burst: int = STEPS
    stall: float | None = None


class Storage(Protocol):
    """The storage of rows (memory.Memory; a simulation has its own)."""

    def open(self, sequence: Sequence) -> int:
        """Begin a sequence. Returns the number of its rows that are stored already."""

    def can_grow(self, key: Hashable, tokens: int) -> bool:
        """True if the sequence can grow to `tokens`. Evicts unreferenced cache pages if that makes it fit."""

    def reserve(self, key: Hashable, tokens: int) -> None:
        """Take the pages for `tokens`."""

    def ahead(self, sequence: Sequence, steps: int, grow: bool) -> int:
        """Return how many of these steps a decoding sequence may take at once. Takes free pages for them if `grow`."""

    def accept(self, key: Hashable, tokens: int) -> None:
        """Count the sequence's first `tokens` rows as stored, up to an accepted proposal."""

    def fork(self, sequence: Sequence, sibling: Sequence) -> None:
        """Begin `sibling` on the pages of `sequence`."""

    def keep(self, sequence: Sequence) -> None:
        """Offer the sequence's stored rows to later ones."""

    def close(self, sequence: Sequence) -> None:
        """Give back all pages of the sequence."""

    def outgrown(self, sequence: Sequence) -> bool:
        """True if a running sequence has become too long for its stored rows."""

    def reopen(self, sequence: Sequence) -> int:
        """Begin an outgrown sequence again. Returns the number of its rows that are stored already."""

    def forget(self) -> None:
        """Drop all rows of ended sequences."""

    def recover(self) -> None:
        """Take back all pages of all sequences, after a step that failed at any call."""


@dataclass
class Queue:
    """The running sequences, oldest first, and the waiting ones, next first.

    preempted, proposed, accepted: the counts of preemptions, of tokens proposed, and of those that were accepted.
    """

    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    preempted: int = 0
    proposed: int = 0
    accepted: int = 0


def schedule(queue: Queue, storage: Storage, limits: SchedulerLimits, chunk: int) -> dict[Sequence, int]:
    """Choose the next step's rows, {sequence: rows}, and reserve their pages. Moves sequences between running and waiting.

    chunk: the most rows of prompts beside sequences that decode.
    """
    chunks, left = dict[Sequence, int](), limits.rows

    def preempt() -> Sequence:
        """Move the youngest running sequence to the front of the waiting ones; its rows are computed again."""
        nonlocal left
        last = queue.running[-1]
        left += chunks.pop(last, 0)
        storage.close(last)
        last.restart()
        queue.preempted += 1
        queue.waiting.appendleft(last)  # before it leaves the other queue: if the step fails between, it is in one of them
        queue.running.pop()
        return last

    def add(s: Sequence, rows: int) -> None:
        """Add rows of a running sequence to the step. Preempts younger sequences until its pages fit, at last the sequence itself."""
        nonlocal left
        while not storage.can_grow(s.key, s.stored + rows):
            if preempt() is s:
                return
        storage.reserve(s.key, s.stored + rows)
        chunks[s], left = rows, left - rows

    for s in queue.running:
        if storage.outgrown(s):
            s.stored = storage.reopen(s)
    began = list(queue.running)
    for s in began:
        if s.pending == 1 and s in queue.running and left > 0:
            if s.proposed and not (left > len(s.proposed) and storage.can_grow(s.key, s.stored + 1 + len(s.proposed))):
                s.proposed = []  # no page is taken from another text for them
            add(s, 1 + len(s.proposed))
    if any(s.written for s in chunks):
        left = min(left, chunk)
    for s in began:
        if s.pending > 1 and s in queue.running and left > 0 and (s.request.watched is not None or not runs_whole(s, limits)):
            add(s, s.pending if runs_whole(s, limits) else min(s.pending, left))
    if len(queue.running) == len(began):  # else a sequence has just been preempted, and a new one would take its pages
        admit(queue, storage, limits, chunks, left)
    if any(s.pending > 1 or not s.written for s in chunks):  # proposals are for steps in which every sequence decodes
        for s in chunks:
            s.proposed = []
        chunks = {s: min(rows, s.pending) for s, rows in chunks.items()}
    return chunks


def admit(queue: Queue, storage: Storage, limits: SchedulerLimits, chunks: dict[Sequence, int], left: int) -> None:
    """Admit waiting sequences in order while the pages hold their tokens plus one, for at most `left` rows.

    A lone sequence needs pages for its next chunk only: layers with a window give pages back from chunk to chunk.
    """
    while queue.waiting and left > 0:
        s = queue.waiting[0]
        if queue.running and sum(1 + r.siblings for r in (*queue.running, s)) > limits.running:
            return
        if runs_whole(s, limits) and any(rows > 1 for rows in chunks.values()):
            return
        s.stored = storage.open(s)
        rows = s.pending if runs_whole(s, limits) else min(s.pending, left)
        needed = min(len(s.tokens) + 1, s.request.budget) if queue.running else s.stored + rows
        if not storage.can_grow(s.key, needed):
            storage.close(s)
            s.stored = 0
            return
        storage.reserve(s.key, s.stored + rows)
        s.cached = s.stored if s.cached is None else s.cached
        queue.running.append(s)
        queue.waiting.popleft()
        chunks[s] = rows
        left -= rows


def runs_whole(s: Sequence, limits: SchedulerLimits) -> bool:
    """True if the sequence's prompt must run in one step: its tokens attend in both directions, or are recorded together."""
    return (limits.whole_prompts and not s.request.scored) or s.request.watched is not None
