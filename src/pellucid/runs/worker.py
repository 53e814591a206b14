"""One thread in which models run, one run after another: requests wait in a queue, and one whose client has disconnected is dropped.

A forward that has begun ends at its next tensor: the watch's `keep` checks the event.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from pellucid.errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request
    from torch import Tensor

T = TypeVar("T")
Job = Callable[["Stop"], T]


class Stop(threading.Event):
    """An event that ends a run."""

    def check(self) -> None:
        """Raise a RequestError if the event is set."""
        if self.is_set():
            raise RequestError("server.stopped", 503)

    def keep(self, x: "Tensor") -> "Tensor":
        """Return `x` detached, or raise if the event is set; a watch's `keep`."""
        self.check()
        return x.detach()


class Worker:
    """A thread and its queue. waiting: the most jobs in the queue, beside the one that runs."""

    def __init__(self, waiting: int) -> None:
        self.most, self.waiting = waiting, 0
        self.jobs: queue.Queue[tuple[Callable[[], Any], Stop, Future[Any]] | None] = queue.Queue()
        self.stops: set[Stop] = set()
        self.thread = threading.Thread(target=self.work, name="pellucid-runs", daemon=True)
        self.thread.start()

    def work(self) -> None:
        """Run jobs one after another until the queue yields None."""
        while (job := self.jobs.get()) is not None:
            run, stop, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                stop.check()
                future.set_result(run())
            except StopIteration as fault:  # no future takes it, and the request would wait for ever
                future.set_exception(RuntimeError(fault))
            except BaseException as fault:
                future.set_exception(fault)
            finally:
                del job, run, future  # a run's tensors live as long as the store keeps them, and no longer

    async def run(self, request: "Request", job: Job[T]) -> T:
        """Run `job` in the thread and return its result. A RequestError if the queue is full or the client disconnects.

        The request's body must have been read: what comes next is the disconnect.
        """
        if self.waiting > self.most:
            raise RequestError("server.busy", 429, limit=self.most)
        stop, future = Stop(), Future[T]()
        context = copy_context()  # the language
        self.jobs.put((lambda: context.run(job, stop), stop, future))
        self.waiting += 1
        self.stops.add(stop)
        done: asyncio.Future[T] = asyncio.wrap_future(future)
        gone: asyncio.Future[None] = asyncio.ensure_future(left(request))
        try:
            both: list[asyncio.Future[Any]] = [done, gone]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise RequestError("server.stopped", 503)
            return done.result()
        finally:
            stop.set()
            for task in (done, gone):
                task.cancel()
            self.stops.discard(stop)
            self.waiting -= 1

    def close(self, patience: float = 2.0) -> None:
        """Stop the running job, drop the waiting ones, and join the thread."""
        for stop in list(self.stops):
            stop.set()
        self.jobs.put(None)
        self.thread.join(patience)


async def left(request: "Request") -> None:
    """Return once the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
