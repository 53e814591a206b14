"""What ends a burst: a call of another thread, time, a watch, a weight that is replaced."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from pellucid.api.model import Model
from pellucid.engine import bursts
from pellucid.engine.engine import Engine
from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.watching.watch import watch
from test_bursts import MIXED, _at_leisure, counted, pytestmark, ran, requests_of, zeros  # noqa: F401
from tiny import swapped, tiny


def steps_before_answer(call: Any, spoil: Any = None) -> int:
    """Return the steps that run after another thread's call, made while a burst's first step runs."""
    module, steps = tiny("llama", torch.float32), list[int]()
    engine = Engine.of(module, 400, SchedulerLimits(), 64)
    with nullcontext() if spoil is None else spoil, counted(steps):
        engine.submit(Request((1, 2, 3), 120))
        for _ in range(3):
            engine.step()
        forward = engine.run

        def run(chunks: Any) -> Any:
            thread = threading.Thread(target=call, args=(engine,))
            thread.start()
            thread.join()
            return forward(chunks)

        engine.run, steps[:] = run, []
        engine.step()
        engine.run = forward
        list(engine.outputs())
    return steps[0]


CALLS = {
    "submit": lambda engine: engine.submit(Request((4, 5), 2)),
    "cancel": lambda engine: engine.cancel(0),
    "close": lambda engine: engine.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_ends_a_burst(call: str) -> None:
    assert steps_before_answer(CALLS[call]) == 1 and steps_before_answer(lambda engine: None) == bursts.STEPS


def longest(*streamed: bool) -> int:
    """Return the most steps of a burst of texts, of which some are streamed."""
    engine, steps = Engine.of(tiny("llama", torch.float32), 400, SchedulerLimits(), 64), list[int]()
    with counted(steps):
        for i, each in enumerate(streamed):
            engine.submit(Request((1, 2, 3 + i), 60, streamed=each))
        list(engine.outputs())
    return max(steps)


@pytest.mark.parametrize("name", ["STREAMED", "COLLECTED"])
def test_time_ends_a_burst(name: str) -> None:
    """One streamed text is enough for short bursts; and without any, texts that are not streamed have long ones."""
    with swapped(bursts, name, 0.0):
        most = [longest(True), longest(False, True), longest(False), longest(False, False)]
    short, long = [1, 1], [bursts.STEPS, bursts.STEPS]
    assert most == (short + long if name == "STREAMED" else long + short)


def test_who_waits_for_a_text_lets_bursts_be_long() -> None:
    """`generate` returns texts at their ends, `stream` yields tokens."""
    model, steps = Model("tiny", tiny("llama", torch.float32), None, {}, None), list[int]()  # type: ignore[arg-type]
    with counted(steps), swapped(bursts, "STREAMED", 0.0):
        model.generate([1, 2, 3], 60, eos=None)
        long, steps[:] = max(steps), []
        list(model.stream([1, 2, 3], 60, stops=()))
    assert long == bursts.STEPS and max(steps) == 1


def test_a_watch_sees_every_step() -> None:
    """A watch, opened between two bursts, sees each step; and without it bursts go on."""
    module, steps = tiny("llama", torch.float32), list[int]()
    engine = Engine.of(module, 400, SchedulerLimits(), 64)
    with counted(steps):
        engine.submit(Request((1, 2, 3), 100))
        outputs = [engine.step() for _ in range(3)]
        before = len(steps)
        with watch(module, only="layers.0.out") as seen:
            outputs += [engine.step() for _ in range(5)]
        assert len(steps) == before > 0 and len(seen) == 5 and [len(o) for o in outputs[3:]] == [1] * 5
        list(engine.outputs())
    assert len(steps) > before


def test_a_weight_that_is_replaced_is_seen_by_the_next_burst() -> None:
    def text(burst: int, at: int) -> tuple[int, list[int]]:
        """Return a text whose head is replaced when it has `at` tokens, or a few more, and their number."""
        module = tiny("llama", torch.float32)
        engine, out = Engine.of(module, 400, SchedulerLimits(burst=burst), 64, prefix_cache=False), list[Output]()
        engine.submit(Request((1, 2, 3), 40))
        while len(out) < at:
            out += engine.step()
        before = len(out)
        module.head.weight = torch.nn.Parameter(module.head.weight.flip(0).contiguous(), requires_grad=False)
        return before, [o.token.id for o in (*out, *engine.outputs()) if o.token]

    at, burst = text(8, 12)
    assert text(1, at) == (at, burst) and at > 12


def test_a_thread_delivers_every_token() -> None:
    """Texts through an engine's thread, with rows counted for each step."""
    module = tiny("llama", torch.float32)
    requests, rows = requests_of(module, MIXED), list[int]()
    outputs, changed = list[Output](), threading.Condition()

    def deliver(new: list[Output]) -> None:
        with changed:
            outputs.extend(new)
            changed.notify_all()

    thread = EngineThread(Engine.of(module, 800, SchedulerLimits(64, 8), 4), deliver, observe=rows.append)
    for request in requests:
        thread.submit(request)
    with changed:
        assert changed.wait_for(lambda: sum(o.ended is not None for o in outputs) == 5, 60)
    assert thread.close()
    single = ran(module, requests, 1)
    for key, text in single.outputs.items():
        assert [replace(o, cached=0) for o in outputs if (o.request, o.index) == key] == text
    assert sum(rows) == sum(len(r.prompt) for r in requests) + sum(len(text) for text in single.outputs.values()) - 5


def test_a_deaf_burst_is_seen() -> None:
    assert steps_before_answer(CALLS["cancel"], swapped(*zeros("interrupt"))) == bursts.STEPS
