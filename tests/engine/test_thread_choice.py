"""The number of threads follows what is measured on a busy machine, and what a text says does not depend on it."""

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from pellucid.bench.idle import Watchman
from pellucid.engine import thread_choice
from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.requests import Request
from pellucid.engine.thread_choice import ThreadChoice, numbers
from pellucid.ops import native
from test_bursts import counted
from test_plan import needs_kernels
from tiny import tiny

Cost = Callable[[int], float]


class Machine:
    """A clock, and the share of the processors that others take."""

    def __init__(self, share: float, cost: Cost) -> None:
        self.now, self.share, self.cost = 0.0, share, cost

    def until(self, later: object) -> float:
        return self.share

    def steps(self, choice: ThreadChoice, count: int, rows: int = 1) -> list[int]:
        """Run steps, each as long as its number of threads costs. Returns the numbers."""
        out = []
        for _ in range(count):
            n = choice.number(rows)
            self.now += self.cost(n)
            choice.took(n, self.cost(n))
            out.append(n)
        return out


@pytest.fixture(autouse=True)
def _four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


def made(share: float, cost: Cost) -> tuple[Machine, ThreadChoice]:
    machine = Machine(share, cost)
    return machine, ThreadChoice(lambda: machine.now, lambda: cast(Watchman, machine))


def follows() -> bool:
    """True if a quiet machine keeps all threads, a busy one gets the fastest number, and a quiet one all of them again."""
    quiet, choice = made(0.1, lambda n: 0.4 / n)
    right = set(quiet.steps(choice, 100)) == {4}
    for best in (1, 2, 4):
        busy, choice = made(0.6, lambda n: 0.1 + 0.05 * abs(n - best))
        tried = busy.steps(choice, 60)
        right &= set(tried) == {1, 2, 4} and set(tried[40:]) == {best}
        busy.share = 0.0
        right &= set(busy.steps(choice, 300)[200:]) == {4}
    return right


def test_the_fastest_number_is_kept() -> None:
    assert numbers(4) == [4, 2, 1] and numbers(6) == [6, 3, 1] and numbers(1) == [1]
    assert follows()


@pytest.mark.parametrize(
    ("name", "value"),
    [("BUSY", 0.9), ("BUSY", 0.05), ("MARGIN", 0.0), ("TRIES", 1000), ("KEPT", 1e9), ("numbers", lambda most: [most, most // 2])],
)
def test_a_wrong_rule_is_seen(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_choice, name, value)
    assert not follows()


def test_little_gain_changes_nothing_and_other_rows_begin_again() -> None:
    busy, choice = made(0.6, lambda n: 0.1 - 0.002 * (n == 1))
    assert set(busy.steps(choice, 80)[40:]) == {4}
    busy, choice = made(0.6, lambda n: 0.1 * n)
    busy.steps(choice, 12)
    assert choice.trials and busy.steps(choice, 1, rows=7) == [4] and choice.rows == 7
    assert choice.number(0) == 4  # a prompt's rows are not measured


@needs_kernels
def test_a_text_does_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = tiny("llama", torch.float32), native.library.here

    def text(of: Callable[[], int]) -> list[Any]:
        used = set()

        def number(self: ThreadChoice, rows: int) -> int:
            used.add(n := of())
            return n

        monkeypatch.setattr(ThreadChoice, "number", number)
        engine = Engine.of(model, 200, size=8)
        engine.submit(Request((5, 3, 80, 7), 20, logprobs=1))
        out = [o.token for o in engine.outputs()]
        assert len(used) == len({*used}) and real.threads is None
        return out

    turn = iter(range(1, 10_000))
    assert text(lambda: 1) == text(lambda: 2) == text(lambda: 1 + next(turn) % 3)


@needs_kernels
def test_only_steps_of_a_plan_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's step among the trials would make all threads look slow."""
    noted = list[float]()
    monkeypatch.setattr(ThreadChoice, "took", lambda self, threads, seconds: noted.append(seconds))
    engine = Engine.of(tiny("llama", torch.float32), 200, size=8)
    engine.submit(Request((5, 3, 80, 7), 20, logprobs=1))
    engine.step()  # the prompt's
    engine.step()  # records the plan
    assert not noted
    list(engine.outputs())
    assert len(noted) == 18


@needs_kernels
def test_numbers_are_tried_in_single_steps() -> None:
    """A burst may last a second, and a number is known after a few steps."""

    def longest(trials: dict[int, list[float]]) -> int:
        engine, steps = Engine.of(tiny("llama", torch.float32), 200, size=8), list[int]()
        engine.submit(Request((5, 3, 80, 7), 120))
        for _ in range(3):
            engine.step()
        choice, tried = cast(Forward, engine.run).threads, bool(trials)
        choice.trials, choice.due = trials, math.inf  # no look at this machine ends them
        with counted(steps):
            while engine.queue.running and bool(choice.trials) == tried:  # not until the last token: bursts follow the last trial
                engine.step()
        return max(steps, default=1)

    assert longest({4: [], 2: [], 1: []}) == 1 < longest({})
