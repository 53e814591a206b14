"""A step may fail at any call: no output is lost, repeated or late, every text is right, and no page leaks."""

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch

from campaigns.soak import Soak
from pellucid.engine.engine import Engine
from pellucid.engine.generation import generate
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.ops.sampling.settings import Sampling
from simulate import Simulation
from simulate_faults import ENOUGH, Fault, FaultySimulation, fault_at, simulate_with_faults
from test_engine import NEW, SHARED, built, wanted
from tiny import swapped

FULL = bool(os.environ.get("PELLUCID_FULL"))
ASKED = [
    Request((0, 0, 0, 1, 2), 6, n=2), Request((0, 0, 0, 3), 4, scored=True), Request((0, 0, 0, 1), 7, Sampling(temperature=1.0, seed=3)),
    Request((2,), 5, stops=frozenset(range(0, 64, 3))), Request((0, 0, 0, 1, 2, 3), 0),
]  # fmt: skip
NEVER_ENDS = 60


def short(step: int = -1, at: int = ENOUGH) -> tuple[FaultySimulation, list[int]]:
    """Run one short simulation with a fault at call `at` of step `step`; return it and the number of calls of each step.

    It has a fork, a score, too few pages, and a request cancelled in the queue and one while it runs.
    """
    made = Simulation.of(15, 2, SchedulerLimits(6, 4), True)
    simulation, counts = FaultySimulation(made.pages, made.model, made.engine), list[int]()
    for request in ASKED:
        simulation.requests[simulation.engine.submit(request)] = request
    for k in range(NEVER_ENDS):
        if k in (1, 4):
            simulation.engine.cancel(4 if k == 1 else 2)
        counts.append(simulation.step_with_fault(at if k == step else ENOUGH).count)
        if simulation.engine.idle:
            break
    return simulation, counts


def test_a_fault_at_every_call_of_every_step() -> None:
    """After any fault the texts, ends and scores are those of a run without it."""
    undisturbed, counts = short()
    assert (
        undisturbed.faults() == ""
        and {"cancelled", "length", "stop"} <= set(undisturbed.ended.values())
        and len(undisturbed.scores) == 2 - 1
    )
    moments = [(step, at) for step, n in enumerate(counts) for at in range(1, n + 1)]
    assert len(moments) > 3000
    ends = [(step, n - i) for step, n in enumerate(counts) for i in range(2)]  # where a step hands over what it has
    for step, at in moments if FULL else ends + random.Random(1).sample(moments, 80):
        simulation, _ = short(step, at)
        # which texts a cancel meets depends on the moment
        ended = {key: end for key, end in simulation.ended.items() if key[0] not in (2, 4)}
        assert simulation.faults() == "" and ended == {key: undisturbed.ended[key] for key in ended}, (step, at)
        assert simulation.scores == undisturbed.scores, (step, at)


@pytest.mark.parametrize("seed", range(1000 if FULL else 25))
@pytest.mark.quick(7)
def test_lives_with_faults(seed: int) -> None:
    simulation, _ = simulate_with_faults(random.Random(f"faulty:{seed}"))
    assert simulation.faults() == ""


def test_lives_meet_faults() -> None:
    simulations = [simulate_with_faults(random.Random(f"faulty:{seed}")) for seed in range(12)]
    assert sum(failed for _, failed in simulations) > 60 and {"cancelled", "stop", "length"} <= {
        e for simulation, _ in simulations for e in simulation.ended.values()
    }


# Ten thousand requests to a real model.


class FaultySoak(Soak):
    """A soak in which some steps fail; see campaigns/soak.py."""

    failed = 0

    def run(self, requests: int) -> "FaultySoak":
        honest, draw, last = Engine.step, random.Random(f"faults:{requests}"), [500]

        def step(engine: Engine) -> list[Output]:
            if draw.random() > 0.1:
                return honest(engine)
            outputs = None
            with suppress(Fault), fault_at(draw.randint(1, last[0])) as calls:
                outputs = honest(engine)
            if outputs is None:
                self.failed += 1
                return []
            last[0] = calls.count
            return outputs

        with swapped(Engine, "step", step):
            super().run(requests)
        return self


def soaked(requests: int) -> tuple[FaultySoak, list[str]]:
    """Run a soak of `requests` requests; return it and its faults."""
    soak = FaultySoak("llama", random.Random("faulty soak"))
    soak.run(requests)
    return soak, soak.faults + [name for name, n in soak.left().items() if n]


def test_requests_lose_no_end() -> None:
    """Each submitted text ends once and is what it is alone."""
    soak, wrong = soaked(10_000 if FULL else 150)
    assert wrong == [] and soak.failed > soak.counts["steps"] // 30
    assert min(soak.counts[name] for name in ("finished", "cancelled", "put_off")) > 0


# Mutants.


def forgets_outputs(self: Engine) -> None:
    """Drop the outputs of the failed step."""
    self.emitted = []
    recover(self)


def goes_on(self: Engine) -> None:
    """Count a failed step as done."""
    self.unfinished = False


recover, receive = Engine.recover, Engine.receive


def cancels_too_early(self: Engine) -> None:
    """Remove cancelled requests before their outputs are emitted."""
    cancelled, self.cancelled = self.cancelled, set()
    try:
        self.cancelled = set(cancelled)
        receive(self)
    except BaseException:
        self.cancelled = set()
        raise


MUTANTS: list[tuple[Any, str, Callable[..., Any]]] = [
    (Engine, "recover", forgets_outputs),
    (Engine, "recover", goes_on),
    (Engine, "receive", cancels_too_early),
    (Memory, "recover", lambda self: None),
]


def seen(moments: Sequence[tuple[int, int]]) -> bool:
    """Return True if a fault at one of these moments changes the result."""
    with suppress(KeyError, ValueError, IndexError, AssertionError, AttributeError):
        simulations = (short(step, at)[0] for step, at in moments)
        return any(simulation.faults() or simulation.ended[4, 0] != "cancelled" for simulation in simulations)
    return True


@cache
def drawn_moments() -> tuple[tuple[int, int], ...]:
    """Return moments at which a fault changes nothing, unless the engine is a mutant; tests share them."""
    moments = [(step, at) for step, n in enumerate(short()[1]) for at in range(1, n + 1)]
    drawn = random.Random(2).sample(moments, 60 if FULL else 30)
    drawn += [(k, at) for k in (1, 4) for at in range(1, 41, 3)]  # where it hears of cancelling
    assert not seen(drawn)
    return tuple(drawn)


@pytest.mark.parametrize(("owner", "name", "value"), MUTANTS, ids=["outputs", "half", "cancelled", "pages"])
@pytest.mark.quick(2)
def test_mutants_are_seen(owner: Any, name: str, value: Any) -> None:
    drawn = drawn_moments()
    with swapped(owner, name, value):
        assert seen(drawn)


# What fails for a user.


def test_a_failing_watcher_loses_no_end() -> None:
    """A request that is cancelled in the step in which a watcher fails ends in the next step."""
    engine = built("gpt2", 2, 64, True)
    numbers = [engine.submit(Request(tuple(SHARED), NEW)) for _ in range(3)]
    first = engine.step()
    engine.cancel(numbers[1])

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    with pytest.raises(MemoryError), engine.watch(numbers[0], keep=fails):
        engine.step()
    assert not engine.idle
    rest = list(engine.outputs())
    got = {n: [out.token.id for out in (*first, *rest) if out.request == n and out.token] for n in numbers}
    assert [out.ended for out in rest if out.request == numbers[1]] == ["cancelled"]
    assert got[numbers[0]] == got[numbers[2]] == wanted("gpt2")[-1]


def test_a_caller_that_stops_early_loses_nothing() -> None:
    """Outputs of one step are yielded one by one; after an early stop the next call yields the rest."""
    engine = built("gpt2", 2, 64, True)
    numbers = [engine.submit(Request(tuple(SHARED), NEW)) for _ in range(3)]
    got = [next(iter(engine.outputs())), *engine.outputs()]
    assert [[out.token.id for out in got if out.request == n and out.token] for n in numbers] == [wanted("gpt2")[-1]] * 3


def test_an_engine_that_failed_serves_the_next_call() -> None:
    """Outputs of a failed call are not yielded by the next one."""
    engine, free = built("gpt2", 2, 64, True), list[Engine]()
    free.append(engine)
    for at in (5, 50, 400, 1500):
        with suppress(Fault), fault_at(at):
            list(generate(engine.module, [Request(tuple(SHARED), NEW)], free, True))  # type: ignore[arg-type]
        outputs = list(generate(engine.module, [Request(tuple(SHARED), NEW)], free, True))  # type: ignore[arg-type]
        assert [out.token.id for out in outputs if out.token] == wanted("gpt2")[-1]
