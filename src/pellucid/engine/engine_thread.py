"""An engine in a thread of its own, for requests of any thread.

    thread = EngineThread(engine, deliver)     deliver(outputs) is called in the thread, once a step
    number = thread.submit(request)

A step that raises harms only the request that made it raise. The requests whose rows ran in it run again, one at a time, until each has
its next token; one that raises alone ends with an error, and all others go on from their tokens. A text does not depend on restarts.
A request's watch is open from its first forward to its end (watched_text.py).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from torch import Tensor

from pellucid.engine.draft import Draft
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Output, Request, Sequence
from pellucid.engine.scheduler import Queue
from pellucid.engine.watched_text import OpenWatches
from pellucid.errors import PellucidError, UseError


class EngineThread:
    """The thread of one engine.

    deliver: receives the outputs of each step.  report: receives each exception of a step, for a log.
    observe: receives the number of rows of each step that ran.
    began: when each request that has not ended first ran, by the monotonic clock.  broken: the exception after which the engine cannot
    go on.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Output]], None],
        report: Callable[[Exception], None] = lambda fault: None,
        observe: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.engine, self.deliver, self.report, self.observe = engine, deliver, report, observe
        self.forward, engine.run = engine.run, self.run
        self.proposals, engine.propose = engine.propose, self.propose
        self.began: dict[int, float] = {}
        self.ran: tuple[int, ...] = ()  # the requests of the step
        self.watches = OpenWatches()
        self.wake, self.ended = threading.Event(), False
        self.broken: Exception | None = None
        self.thread = threading.Thread(target=self.work, name="pellucid-engine", daemon=True)
        self.thread.start()

    def submit(self, request: Request) -> int:
        """Queue a request and return its number. Raises UseError as Engine.submit, and for a watched request with several texts."""
        if self.broken is not None:
            raise UseError("engine.closed")
        if request.watched is not None and request.n > 1:
            raise UseError("engine.watched", found=request.n)
        number = self.engine.submit(request)
        self.wake.set()
        return number

    def cancel(self, number: int, index: int | None = None) -> None:
        """End a request, or one of its texts, with the next step."""
        self.engine.cancel(number, index)
        self.wake.set()

    def close(self, patience: float = 5.0) -> bool:
        """End all requests and the thread. Returns True if it has ended; one that runs a forward cannot be stopped."""
        self.engine.close()
        self.ended = True
        self.wake.set()
        self.thread.join(patience)
        return not self.thread.is_alive()

    def work(self) -> None:
        """Step while there are requests, and wait while there are none."""
        while not (self.ended and self.engine.idle):
            self.wake.wait()
            self.wake.clear()
            while not self.engine.idle and self.broken is None:
                outputs = self.settled(self.step())
                self.deliver(outputs)
                for number in {o.request for o in outputs if o.ended is not None} - self.unended():
                    self.began.pop(number, None)
            if self.broken is not None:
                self.watches.close()
                return

    def unended(self) -> set[int]:
        """Return the numbers of the requests in the engine."""
        return {s.number for s in (*self.engine.queue.running, *self.engine.queue.waiting)}

    def run(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        """Run the engine's forward, and note what runs."""
        self.ran, now = tuple(dict.fromkeys(s.number for s in chunks)), time.monotonic()
        for number in self.ran:
            self.began.setdefault(number, now)
        self.observe(sum(chunks.values()))
        self.watches.begin(chunks)
        logits = self.forward(chunks)
        for _ in range(max((s.steps - 1 for s in chunks), default=0)):
            self.observe(len(chunks))
        return logits

    def propose(self, running: list[Sequence], draft: Draft | None) -> None:
        """Set the proposals of the next step. If a draft fails, its texts go on without any, since they need none."""
        try:
            self.proposals(running, draft)
        except Exception as fault:
            self.report(fault)
            self.engine.speculates = False
            for s in running:
                s.proposed = []
            if draft is not None:
                draft.recover()

    def settled(self, outputs: list[Output]) -> list[Output]:
        """Settle the watches after a step. Returns its outputs, with an error in place of those of a request whose change failed."""
        if not self.watches.texts:
            return outputs
        faults = self.watches.faults()
        ends = {o.request: o.ended for o in outputs if o.ended is not None} | dict.fromkeys(faults, "error")
        try:
            faults |= self.watches.settle(ends, [number for number, ended in ends.items() if ended in ("stop", "length")])
        except Exception as fault:  # of a callback, which is no reason to end the thread
            self.report(fault)
        failed = [output for number, fault in faults.items() for output in self.fail(number, fault)]
        return [o for o in outputs if o.request not in faults] + failed

    def fail(self, number: int, fault: PellucidError) -> list[Output]:
        """End a request in the engine with an error. Returns the outputs that say so, one if it has left the engine already."""
        outputs = list[Output]()
        for s in [s for s in (*self.engine.queue.running, *self.engine.queue.waiting) if s.number == number]:
            outputs += [Output(number, i, ended="error", error=fault) for i in range(s.index, s.index + s.siblings + 1)]
            self.engine.finish(s)
        return outputs or [Output(number, 0, ended="error", error=fault)]

    def step(self) -> list[Output]:
        """Run one step and return its outputs; after an exception, those of its requests one at a time."""
        try:
            self.ran = ()
            return self.engine.step()
        except Exception as fault:
            self.report(fault)
            try:
                return self.isolate(fault)
            except Exception as second:
                return self.give_up(second)

    def isolate(self, fault: Exception) -> list[Output]:
        """Run the requests of the failed step one at a time, each until it has its next token. Those that raise end with an error."""
        suspects = self.ran
        if not suspects:  # no rows ran: a call before them failed, which the next step repeats
            raise fault
        failed = list[Output]()
        for number in suspects:
            wrong = self.attempt(number) if len(suspects) > 1 else fault
            if wrong is not None:
                self.engine.recover()
                own = wrong if isinstance(wrong, PellucidError) else UseError("engine.step", kind=type(wrong).__name__)
                failed += self.fail(number, own)
        return [*self.engine.pop_outputs(), *failed]

    def attempt(self, number: int) -> Exception | None:
        """Run one request alone until each of its texts has its next token, or it ends. Returns what it raised."""
        self.engine.recover()  # the pages of all others are free then, so that it can run
        everything = self.engine.queue
        own = [s for s in everything.waiting if s.number == number]
        others = deque(s for s in everything.waiting if s.number != number)
        lengths = {s: len(s.tokens) for s in own}
        self.engine.queue = Queue(waiting=deque(own), preempted=everything.preempted)
        wrong: Exception | None = None
        try:
            while any(len(s.tokens) == lengths[s] for s in (*self.engine.queue.running, *self.engine.queue.waiting) if s in lengths):
                self.ran = ()
                self.engine.run_rows()
                if not self.ran:
                    raise RuntimeError(number)
        except Exception as fault:
            wrong = fault
        self.engine.queue.waiting += others
        return wrong

    def give_up(self, fault: Exception) -> list[Output]:
        """End all requests with an error, since the engine cannot be repaired."""
        self.report(fault)
        self.broken = fault
        self.engine.close()
        error = UseError("engine.step", kind=type(fault).__name__)
        queue = self.engine.queue
        sequences = (*queue.running, *queue.waiting, *self.engine.arrived)
        ended = [Output(s.number, i, ended="error", error=error) for s in sequences for i in range(s.index, s.index + s.siblings + 1)]
        return [*self.engine.pop_outputs(), *ended]
