"""A model's prefill and decode in seconds on this machine, in all and by part, each compared with its bound.

The total is of the ordinary run, in which a decode step replays its plan. The parts are of a second run with hooks, which no plan can
replay, so their sum exceeds the total by what the plan saves.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.bench.machine_limits import Clock, timed
from pellucid.counting import Bill
from pellucid.counting.bounds import Device, parts, unit
from pellucid.counting.distinct import PLACE
from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder

LEAST, MOST, SPENT = 3, 20, 2.0  # runs of a prefill, and the seconds after which no more begin
WARM = 3  # steps: the first reads the prompt, the second records the plan, the third replays it


@dataclass(frozen=True)
class Timed:
    """A phase's times in seconds: each full run, each run with hooks, and the median of each part.

    planned: whether the whole runs replayed a plan.  replayed: that plan alone.
    """

    phase: str
    full: list[float]
    eager: list[float]
    parts: dict[str, float]
    planned: bool = False
    replayed: list[float] = field(default_factory=list)

    @property
    def outside(self) -> float | None:
        """Seconds of a step outside of its plan; None without a plan."""
        return statistics.median(self.full) - statistics.median(self.replayed) if self.replayed else None


@dataclass(frozen=True)
class AgainstBound:
    """Measured seconds and their bound. path: the phase, or a part of all layers of its kind.  sets: what sets the bound."""

    path: str
    seconds: float
    bound: float
    layers: int = 1
    sets: str | None = None

    @property
    def ratio(self) -> float | None:
        """Measured over bound; None if nothing bounds."""
        return self.seconds / self.bound if self.bound else None

    @property
    def error(self) -> float:
        """The relative error of the bound as a prediction: -0.2 if it is a fifth less than the measurement."""
        return self.bound / self.seconds - 1


@dataclass
class Stopwatch:
    """A context in which seconds are added up by parts of a bill, over all layers of a kind; `lap` ends a run."""

    bill: Bill
    model: nn.Module
    clock: Clock = time.perf_counter
    laps: list[dict[str, float]] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    began: float = 0.0
    hooks: list[Any] = field(default_factory=list)

    def __enter__(self) -> "Stopwatch":
        for path, module in self.model.named_modules():
            match = PLACE.fullmatch(path)
            if (path.count(".") == 0 and path not in ("", "layers")) or (match and match["rest"].count(".") == 1):
                self.hooks += self.hooked(module, counted_as(self.bill, unit(path)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hook in self.hooks:
            hook.remove()

    def hooked(self, module: nn.Module, path: str) -> tuple[Any, Any]:
        """Hook a module; parts follow one another and do not nest, so one start time is enough."""

        def start(*_: object) -> None:
            self.began = self.clock()

        def stop(*_: object) -> None:
            self.running[path] = self.running.get(path, 0.0) + self.clock() - self.began

        return module.register_forward_pre_hook(start), module.register_forward_hook(stop)

    def lap(self) -> None:
        self.laps.append(self.running)
        self.running = {}

    def medians(self) -> dict[str, float]:
        """Return the median seconds of a run by part, in the order in which parts ran."""
        return {path: statistics.median(lap[path] for lap in self.laps) for path in self.laps[0]}


def counted_as(bill: Bill, path: str) -> str:
    """Return the path of the first layer of the same kind, under which the bill counts all of them."""
    match = PLACE.fullmatch(path)
    if match is None:
        return path
    kind = bill.reduced.kind(match)
    return f"{kind.stack}layers.{kind.first}{match['rest']}"


def repeated(run: Callable[[], object], clock: Clock) -> list[float]:
    """Return the seconds of some runs, after one to warm up."""
    run()
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < SPENT):
        times.append(timed(run, clock))
    return times


def prefill(model: Decoder, bill: Bill, clock: Clock = time.perf_counter) -> Timed:
    """Time one forward over the bill's context, with the logits of every row."""
    ids = torch.tensor([tokens(bill)])
    mask = prefix(ids.shape[1]) if model.config.prefix else None

    def run() -> None:
        with torch.no_grad():
            model(ids, Step.plain(ids, mask=mask))

    full = repeated(run, clock)
    with Stopwatch(bill, model, clock) as watch:

        def watched() -> None:
            run()
            watch.lap()

        eager = repeated(watched, clock)
    return Timed("prefill", full, eager, watch.medians())


def decode(model: Decoder, bill: Bill, new: int, clock: Clock = time.perf_counter) -> Timed:
    """Time single steps of an engine after the bill's context, each with a greedy choice."""
    request = Request(tuple(tokens(bill)), WARM + new)
    engine = Engine.of(model, request.budget, SchedulerLimits(request.budget, burst=1), prefix_cache=False)
    assert isinstance(engine.run, Forward)

    def steps(watch: Stopwatch | None = None) -> list[float]:
        engine.submit(request)
        for _ in range(WARM):
            engine.step()
        times = []
        if watch is not None:
            watch.running = {}
        for _ in range(new):
            times.append(timed(engine.step, clock))
            if watch is not None:
                watch.lap()
        return times

    full = steps()
    plan = engine.run.plans.buffers[1].plan
    replayed = [] if plan is None else [timed(plan.replay, clock) for _ in range(new)]  # its last step, over and over
    with Stopwatch(bill, model, clock) as watch:
        eager = steps(watch)
    return Timed("decode", full, eager, watch.medians(), plan is not None, replayed)


def tokens(bill: Bill) -> list[int]:
    """Return a random text of the bill's context, the same each time."""
    ids: list[int] = torch.randint(bill.config.vocab, (bill.setting.context,), generator=torch.Generator().manual_seed(0)).tolist()
    return ids


def against_bounds(bill: Bill, timed: Timed, device: Device) -> tuple[AgainstBound, list[AgainstBound]]:
    """Return a phase and its parts with their bounds on a device, in the order in which they run."""
    bounds = {p.path: p for p in parts(bill, timed.phase, device)}
    each = [
        AgainstBound(path, seconds, b.seconds, b.times, b.sets) if (b := bounds.get(path)) is not None else AgainstBound(path, seconds, 0.0)
        for path, seconds in timed.parts.items()
    ]
    return AgainstBound(timed.phase, statistics.median(timed.full), sum(b.seconds for b in bounds.values())), each
