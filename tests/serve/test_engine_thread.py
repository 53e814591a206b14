"""The engine's thread: each text is its lone run, a step that raises harms its own request alone, and what is cancelled frees its pages."""

import threading
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.batch.kv_cache import PagedCache
from pellucid.engine import engine as engine_module
from pellucid.engine.engine import Engine
from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.requests import Output, Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.token_mask import TokenMask
from tiny import LLAMA, V, ids, swapped, tiny

PROMPTS = [tuple(ids(n, seed=n).tolist()) for n in (5, 9, 3, 12, 7, 30)]
NEW = 8


class Receiver:
    """A thread over a tiny model, and what it delivered."""

    def __init__(self, spoil: Callable[[Mapping[Sequence, int]], None] = lambda chunks: None, tokens: int = 400, rows: int = 32) -> None:
        self.engine = Engine.of(tiny(LLAMA), tokens, SchedulerLimits(rows), 4)
        forward = self.engine.run

        def run(chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
            spoil(chunks)
            return forward(chunks)

        self.engine.run = run
        self.outputs: list[Output] = []
        self.changed = threading.Condition()
        self.faults: list[Exception] = []
        self.thread = EngineThread(self.engine, self.receive, self.faults.append)

    def receive(self, outputs: list[Output]) -> None:
        with self.changed:
            self.outputs += outputs
            self.changed.notify_all()

    def wait(self, texts: int) -> dict[int, list[Any]]:
        """Wait until this number of texts has ended. Returns each request's ids, with its end last."""
        with self.changed:
            assert self.changed.wait_for(lambda: sum(o.ended is not None for o in self.outputs) >= texts, 60)
        out: dict[int, list[Any]] = {}
        for o in self.outputs:
            row = out.setdefault(o.request, [])
            row += ([o.token.id] if o.token is not None else []) + ([o.ended] if o.ended is not None else [])
        return out

    def end(self) -> None:
        assert self.thread.close()
        storage: Any = self.engine.storage
        assert self.engine.idle and not storage.pages.holders() and storage.cache.sound()


def requests() -> list[Request]:
    return [Request(p, NEW, Sampling(1.0, seed=i)) for i, p in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def wanted() -> list[list[Any]]:
    """Return each text alone, from an engine of its own."""
    out = []
    for request in requests():
        engine = Engine.of(tiny(LLAMA), 64, size=4)
        engine.submit(request)
        out.append([o.token.id for o in engine.outputs() if o.token is not None] + ["length"])
    return out


def spoiler(bad: set[int], after: int = 0, times: int = 1 << 30) -> Callable[[Mapping[Sequence, int]], None]:
    """Raise in steps that have rows of the requests `bad` with at least `after` new tokens, `times` times."""
    left = times

    def spoil(chunks: Mapping[Sequence, int]) -> None:
        nonlocal left
        if left and any(s.number in bad and s.written >= after for s in chunks):
            left -= 1
            raise RuntimeError("spoiled")

    return spoil


@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("bad", [{2}, {0, 5}, {0, 1, 2, 3, 4, 5}])
@pytest.mark.quick(5)
def test_a_step_that_raises_harms_its_own(bad: set[int], after: int, wanted: list[list[Any]]) -> None:
    assert harmed(bad, after, wanted) == []


def harmed(bad: set[int], after: int, wanted: list[list[Any]]) -> list[int]:
    """Return the requests that did not end as they should: those of `bad` with an error, all others as alone."""
    receiver = Receiver(spoiler(bad, after))
    for request in requests():
        receiver.thread.submit(request)
    got = receiver.wait(len(PROMPTS))
    receiver.end()
    right = {n: [*w[:after], "error"] if n in bad else w for n, w in enumerate(wanted)}
    assert receiver.faults
    return [n for n in right if got.get(n) != right[n]]


def test_isolation_mutant(wanted: list[list[Any]]) -> None:
    """A thread that ends all requests of a failed step is seen."""
    with swapped(EngineThread, "attempt", lambda self, number: RuntimeError("all")):
        assert harmed({2}, 1, wanted)


def test_a_passing_fault_harms_nothing(wanted: list[list[Any]]) -> None:
    """A step that raises once, as for want of memory, is run again."""
    receiver = Receiver(spoiler(set(range(6)), 2, times=1))
    for request in requests():
        receiver.thread.submit(request)
    assert receiver.wait(6) == dict(enumerate(wanted)) and len(receiver.faults) == 1
    receiver.end()


def test_several_texts_of_one_request() -> None:
    receiver, plain = Receiver(spoiler({1}, 3)), Receiver()
    for one in (receiver, plain):
        for n in (2, 3, 1):
            one.thread.submit(Request(PROMPTS[n], NEW, Sampling(1.0, seed=n), n=3))
        one.wait(9)
        one.end()
    ended = [(o.index, o.ended) for o in receiver.outputs if o.request == 1 and o.ended]
    assert sorted(ended) == [(0, "error"), (1, "error"), (2, "error")]

    for number in (0, 2):
        assert texts_of(receiver, number) == texts_of(plain, number)


def texts_of(one: Receiver, number: int) -> dict[int, list[int]]:
    """Return the ids of each text of a request."""
    out: dict[int, list[int]] = {}
    for o in one.outputs:
        if o.request == number and o.token is not None:
            out.setdefault(o.index, []).append(o.token.id)
    return out


def test_a_text_is_cancelled_alone(wanted: list[list[Any]]) -> None:
    """Of a request with several texts one is cancelled, and the others go on as before."""
    gate = threading.Event()
    plain, receiver = Receiver(), Receiver(lambda chunks: gate.wait() and None if any(s.written == 3 for s in chunks) else None)
    for one in (plain, receiver):
        one.thread.submit(Request(PROMPTS[0], NEW, Sampling(1.0, seed=1), n=3))
    plain.wait(3)
    with receiver.changed:
        assert receiver.changed.wait_for(lambda: sum(o.index == 1 for o in receiver.outputs) >= 3, 60)
    receiver.thread.cancel(0, 1)
    gate.set()
    receiver.wait(3)
    full, cut = texts_of(plain, 0), texts_of(receiver, 0)
    assert cut[0] == full[0] and cut[2] == full[2] and cut[1] == full[1][: len(cut[1])] and len(cut[1]) < NEW
    plain.end()
    receiver.end()


def test_what_is_cancelled_frees_its_pages_in_the_next_step() -> None:
    gate, reached = threading.Event(), threading.Event()

    def spoil(chunks: Mapping[Sequence, int]) -> None:
        if any(s.written == 2 for s in chunks):
            reached.set()
            gate.wait()

    receiver = Receiver(spoil)
    number = receiver.thread.submit(Request(PROMPTS[0], 200))
    assert reached.wait(60)
    receiver.thread.cancel(number)
    gate.set()
    assert receiver.wait(1)[number][-1] == "cancelled"
    assert len([o for o in receiver.outputs if o.token is not None]) <= 3
    receiver.end()


class Even:
    """A constraint to even tokens after the first."""

    def allowed(self, written: Tokens[int], index: int) -> TokenMask | None:
        return TokenMask.of(torch.arange(V) % 2 == 0) if written else None

    def admits(self, written: Tokens[int], index: int, token: int) -> bool:
        return not written or token % 2 == 0


@pytest.mark.parametrize("how", [Sampling(), Sampling(1.5, seed=3), Sampling(1.0, 5, 0.9, 0.01, seed=4)])
def test_a_constraint_holds(how: Sampling) -> None:
    """Every token is one that is allowed, also after preemptions."""
    engine = Engine.of(tiny(LLAMA), 48, SchedulerLimits(8), 4)
    for prompt in PROMPTS[:4]:
        engine.submit(Request(prompt, 20, how, constraint=Even()))
    outputs = [(o.request, o.token.id) for o in engine.outputs() if o.token is not None]
    later = [id for n in range(4) for id in [i for r, i in outputs if r == n][1:]]
    assert len(later) == 4 * 19 and not [id for id in later if id % 2] and engine.queue.preempted


def order() -> list[int]:
    """Return the order in which requests of several priorities end, one at a time."""
    engine = Engine.of(tiny(LLAMA), 400, SchedulerLimits(64, running=1), 4)
    for priority in (0, 0, 5, -1, 0):
        engine.submit(Request(PROMPTS[0], 1, priority=priority))
    return [o.request for o in engine.outputs() if o.ended]


def test_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests begin in the order of their priorities, equal ones in the order of arrival."""
    assert order() == [3, 0, 1, 4, 2]
    monkeypatch.setattr(engine_module, "sorted", lambda queue, key: queue, raising=False)
    assert order() == [0, 1, 2, 3, 4]


def test_an_engine_beyond_repair_says_so() -> None:
    """If even the repair raises, all requests end with an error, and new ones are refused."""
    receiver = Receiver(spoiler({0}))
    with swapped(PagedCache, "holders", lambda self: 1 / 0), swapped(PagedCache, "clear", lambda self: 1 / 0):
        receiver.thread.submit(Request(PROMPTS[0], NEW))
        assert receiver.wait(1)[0][-1] == "error"
        receiver.thread.thread.join(60)
    with pytest.raises(UseError):
        receiver.thread.submit(Request(PROMPTS[0], NEW))
