"""The engine's throughput on a batch of mixed requests, and its time to the first token, cold and with a cached prefix.

16 requests of 40 to 240 tokens, drawn from a seed     useful tokens a second: those that were requested, not all that were computed
cold  a prompt that is new                             warm  its beginning is in the prefix cache, 16 tokens are new
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pellucid.bench.machine_limits import Clock, timed
from pellucid.engine.engine import Engine
from pellucid.engine.memory import Memory, in_pages, page_size
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder

READ, WRITTEN = 144, 72  # tokens of a mixed request, on average
TAIL = 16  # tokens after what the cache knows
RUNS = 3
Progress = Callable[[int, int], None]  # what is done, and of how much


@dataclass(frozen=True)
class BatchLoad:
    """Mixed requests submitted at once: tokens in and out, and seconds until the last has ended."""

    requests: int
    read: int
    written: int
    seconds: float

    @property
    def rate(self) -> float:
        """Useful tokens a second."""
        return self.written / self.seconds


@dataclass(frozen=True)
class First:
    """Seconds to the first token after `context` tokens, run by run. cached: how many of them were cached when warm."""

    context: int
    cached: int
    cold: list[float]
    warm: list[float]


def shares(total: int, count: int, seed: int) -> list[int]:
    """Return `count` lengths of at least 1 whose sum is about `total`, each between a third and five thirds of the average."""
    rng = random.Random(seed)
    weights = [rng.uniform(1.0, 5.0) for _ in range(count)]
    ends = [round(total * sum(weights[: i + 1]) / sum(weights)) for i in range(count)]
    return [max(1, b - a) for a, b in zip([0, *ends], ends, strict=False)]


def mixed(count: int, vocab: int, read: int, written: int, seed: int = 0) -> list[Request]:
    """Return `count` greedy requests of random tokens: `read` prompt tokens and `written` new tokens in all."""
    rng = random.Random(seed)
    lengths = zip(shares(read, count, seed), shares(written, count, seed + 1), strict=True)
    return [Request(tuple(rng.randrange(vocab) for _ in range(n)), new, streamed=False) for n, new in lengths]


def batch_load(model: Decoder, count: int, clock: Clock = time.perf_counter, progress: Progress = lambda done, total: None) -> BatchLoad:
    """Time mixed requests through an engine, on their second run: the first one records the plans."""
    most = (model.config.positions or READ + WRITTEN) / 2.5  # the longest is less than twice the average
    scale = min(1.0, most / (READ + WRITTEN))
    read, written = (max(count, int(n * count * scale)) for n in (READ, WRITTEN))
    requests = mixed(count, model.config.vocab, read, written)
    engine = Engine.of(model, sum(in_pages(model, r.budget) for r in requests), SchedulerLimits(running=count, waiting=count))
    done = 0

    def run() -> None:
        nonlocal done
        engine.storage.forget()
        for request in requests:
            engine.submit(request)
        for _ in engine.outputs():
            done += 1
            progress(done, 2 * written)

    run()
    return BatchLoad(count, read, written, timed(run, clock))


def first(
    model: Decoder, context: int, clock: Clock = time.perf_counter, progress: Progress = lambda done, total: None, runs: int = RUNS
) -> First:
    """Time the first token after a prompt of `context` tokens, cold and warm in turn."""
    rng = torch.Generator().manual_seed(0)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(model.config.vocab, (n,), generator=rng).tolist())

    known, cold, warm = max(0, context - TAIL), list[float](), list[float]()
    engine = Engine.of(model, 2 * (context + 1 + page_size(model)), SchedulerLimits(rows=max(context, 1)))
    beginning, hits = ids(known), 0
    cache = engine.storage.cache if isinstance(engine.storage, Memory) else None  # a model that sees a prompt both ways has none

    def run() -> None:
        list(engine.outputs())

    for i in range(runs + 1):  # the first warms up
        engine.storage.forget()
        for times in (cold, warm):
            before = 0 if cache is None else cache.hits
            engine.submit(Request((*beginning, *ids(context - known)), 1))
            times.append(timed(run, clock))
            hits = 0 if cache is None else cache.hits - before
        progress(i + 1, runs + 1)
    return First(context, hits, cold[1:], warm[1:])
