"""Other threads submit and cancel while one steps: no output is lost, repeated or late, and every text is right."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import pytest

from campaigns.soak import Soak
from covering import FULL
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from simulate import Simulation, random_request, text_alone
from tiny import swapped

ASKERS, EACH = 4, 30
Alone = Callable[[Request, int], list[int]]


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Make threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@dataclass
class Clients:
    """One engine, the requests of several threads, and the outputs of its steps.

    begun: steps so far.  late: by request, the steps that had begun when its cancelling returned.  patience: seconds.
    """

    engine: Engine
    alone: Alone
    begun: int = 0
    submitted: list[tuple[int, Request]] = field(default_factory=list)
    late: dict[int, int] = field(default_factory=dict)
    outputs: list[tuple[int, Output]] = field(default_factory=list)
    refused: int = 0
    patience: float = 60

    def ask(self, seed: int, request: Callable[[random.Random], Request], each: int = EACH) -> None:
        """Submit and cancel requests at random moments, as one thread does."""
        draw = random.Random(seed)
        for _ in range(each):
            made = request(draw)
            try:
                number = self.engine.submit(made)
            except UseError:
                self.refused += 1
                continue
            self.submitted.append((number, made))
            time.sleep(draw.choice([0, 0, 1e-4, 1e-3]))
            if draw.random() < 0.5:
                self.engine.cancel(number)
                self.late.setdefault(number, self.begun)

    def run(self, askers: list[Callable[[], None]]) -> "Clients":
        """Start these threads and step until they end and the engine is idle."""
        threads = [Thread(target=asker) for asker in askers]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + self.patience
        while any(thread.is_alive() for thread in threads) or not self.engine.idle:
            self.begun += 1
            self.outputs += [(self.begun, out) for out in self.engine.step()]
            if time.monotonic() > ends:
                break
        for thread in threads:
            thread.join()
        return self

    def faults(self) -> list[str]:
        """Return the faults after all have ended."""
        faults = ["numbers"] if sorted(n for n, _ in self.submitted) != list(range(self.engine.count)) else []
        outputs: dict[tuple[int, int], list[tuple[int, Output]]] = {}
        for step, out in self.outputs:
            outputs.setdefault((out.request, out.index), []).append((step, out))
        for number, request in self.submitted:
            for index in range(request.n):
                mine = outputs.pop((number, index), [])
                got, ends = [out.token.id for _, out in mine if out.token], [out.ended for _, out in mine if out.ended]
                text = self.alone(request, index)
                if len(ends) != 1 or mine[-1][1].ended is None:
                    faults.append(f"{number}.{index} ended {ends}")
                elif ends == ["cancelled"]:
                    faults += [f"{number}.{index}: {got} begins not {text}"] * (number not in self.late or got != text[: len(got)])
                elif got != text:
                    faults.append(f"{number}.{index}: {got} is not {text}")
                faults += [f"{number} goes on"] * any(step > self.late.get(number, step) for step, out in mine if out.token)
        faults += [f"{key} was not requested" for key in outputs]
        self.engine.storage.forget()
        pages = self.engine.storage.pages  # type: ignore[attr-defined]
        if pages.free_pages != pages.count or pages.holders():
            faults.append(f"{pages.count - pages.free_pages} pages")
        return faults


def simulated(seed: int, waiting: int = 1000, patience: float = 60) -> Clients:
    """Run client threads beside a model whose kv_cache is its own tokens, over few pages."""
    simulation = Simulation.of(40, 2, SchedulerLimits(16, 8, waiting), True)
    clients = Clients(simulation.engine, text_alone, patience=patience)
    return clients.run([lambda i=i: clients.ask(10 * seed + i, lambda draw: random_request(draw, 60)) for i in range(ASKERS)])  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(4 if FULL else 2))
def test_texts_are_their_own(seed: int) -> None:
    clients = simulated(seed)
    assert clients.faults() == []
    ends = {out.ended for _, out in clients.outputs}
    assert {"cancelled", "length", "stop"} <= ends and clients.refused and len(clients.submitted) > ASKERS * EACH // 2


def test_texts_of_a_real_model() -> None:
    """A Llama's texts are right through plans, forwards and the prefix cache."""
    soak = Soak("llama", random.Random(5))
    which = {id(request): i for i, request in enumerate(soak.pool)}
    clients = Clients(soak.engine, lambda request, index: list(soak.alone(which[id(request)], index)))
    clients.run([lambda i=i: clients.ask(i, lambda draw: draw.choice(soak.pool[:40]), 20) for i in range(ASKERS)])  # type: ignore[misc]
    assert clients.faults() == [] and {"cancelled", "length"} <= {out.ended for _, out in clients.outputs}


def queue(patience: float, lock: Any = None) -> tuple[list[int], int]:
    """Return the numbers that eight threads got for five places, and the number of refusals.

    Each thread reads the queue's length, and goes on when all have read it or after `patience` seconds.
    """
    engine, numbers, refused = Simulation.of(40, 2, SchedulerLimits(16, 8, 5), True).engine, list[int](), list[int]()
    engine.lock, all_looked = engine.lock if lock is None else lock, Barrier(8)

    def slow(self: Engine) -> int:
        n = len(self.queue.waiting) + len(self.arrived)
        with suppress(BrokenBarrierError):
            all_looked.wait(patience)
        return n

    def ask() -> None:
        try:
            numbers.append(engine.submit(Request((1,), 2)))
        except UseError:
            refused.append(1)

    with swapped(Engine, "waiting", property(slow)):
        threads = [Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(numbers), len(refused)


def test_places_of_the_queue_are_given_once() -> None:
    """Five places take five requests, however long a check takes; without the lock more are accepted."""
    assert queue(0.1) == ([0, 1, 2, 3, 4], 3)
    assert queue(60, nullcontext())[1] == 0


def test_closed_by_another_thread() -> None:
    """Running texts are cancelled, and later requests are refused."""
    simulation = Simulation.of(40, 2, SchedulerLimits(16, 4), True)
    clients = Clients(simulation.engine, text_alone)

    def ask() -> None:
        for _ in range(12):
            with suppress(UseError):
                clients.submitted.append((simulation.engine.submit(submitted := Request((1, 2, 3), 70)), submitted))
        while clients.begun < 3:
            time.sleep(1e-4)
        simulation.engine.close()
        clients.late |= dict.fromkeys((n for n, _ in clients.submitted), clients.begun)

    assert clients.run([ask]).faults() == []
    assert [out.ended for _, out in clients.outputs].count("cancelled") == len(clients.submitted) == 12
    with pytest.raises(UseError, match="closed"):
        simulation.engine.submit(Request((1,), 2))
    assert simulation.engine.idle and simulation.engine.step() == []


def test_a_number_that_is_not_known_yet() -> None:
    """A cancel before its request is submitted has no effect on it."""
    engine = Simulation.of(40, 2, SchedulerLimits(16, 4), True).engine
    engine.cancel(0)
    engine.cancel(-1)
    number = engine.submit(Request((1, 2), 3))
    assert [out.ended for out in engine.outputs()] == [None, None, "length"]
    engine.cancel(number)
    assert engine.step() == []


receive = Engine.receive


def forgetful(self: Engine) -> None:
    """Lose a cancel that arrives from another thread during the step."""
    cancelled = set(self.cancelled)
    time.sleep(2e-4)
    self.cancelled = cancelled
    receive(self)


def unmoved(self: Engine) -> None:
    """Lose a request that arrives from another thread during the step."""
    self.queue.waiting += self.arrived
    time.sleep(2e-4)
    self.arrived = []
    receive(self)


def leaving(self: Engine, s: Any) -> None:
    """Leave the pages of a finished text in place."""
    (self.queue.running if s in self.queue.running else self.queue.waiting).remove(s)


@pytest.mark.parametrize(("name", "value"), [("receive", forgetful), ("receive", unmoved), ("finish", leaving)])
def test_mutants_are_seen(name: str, value: Any) -> None:
    with swapped(Engine, name, value):
        faulty = False
        for seed in range(5):
            with suppress(UseError, ValueError, AssertionError, KeyError):
                faulty = bool(simulated(seed, patience=5).faults())
            if faulty:
                break
    assert faulty
