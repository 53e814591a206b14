"""Simulations of the engine with a model whose cache is the tokens themselves, so that the rows a text reads are compared with its tokens.

The fake model's next logits follow from every token that it read from the pages: one wrong row, stale page or early write changes the
text. A simulation follows from one seed: requests come, are cancelled, end; pages are few, so that texts are preempted and begun again.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine.engine import Engine
from pellucid.engine.forward import wanted_rows
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Output, Request, Sequence, check
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, build
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose
from tiny import LLAMA

V = LLAMA.vocab
SEED = 5  # of requests that name none


def next_logits(tokens: list[int]) -> Tensor:
    """Return logits [V] that any change of any token changes."""
    mixed = 7
    for t in tokens:
        mixed = (mixed * 31 + t + 1) % 1_000_003
    return (torch.arange(V) * (mixed % 89 + 1) + mixed) % V * 0.5


class ReadbackModel(nn.Module):
    """A model that stores tokens, and reads them back from the pages."""

    window = None

    def __init__(self, pages: PagedCache) -> None:
        super().__init__()
        self.pages, self.rows, self.faults = pages, 0, list[str]()

    def run(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        step = Step.paged(self.pages, {s.key: n for s, n in chunks.items()})
        tokens = torch.tensor([[[t] for s, n in chunks.items() for t in s.tokens[s.stored : s.stored + n]]])
        kv_cache = step.store(self, tokens)
        out: dict[Sequence, Tensor] = {}
        for (s, n), segment in zip(chunks.items(), kv_cache.segments, strict=True):
            read = segment.read()[0][0, :, 0].tolist()
            if read != s.tokens[: s.stored + n]:
                self.faults.append(f"{s.key}: {s.tokens[: s.stored + n]} reads {read}")
            wanted = wanted_rows(s, n)
            out[s] = (
                torch.stack([next_logits(read[:i]) for i in range(len(read) - wanted + 1, len(read) + 1)]) if wanted else torch.empty(0, V)
            )
        step.advance()
        self.rows += sum(chunks.values())
        return out


@dataclass
class Simulation:
    """One simulated engine, its requests and its outputs."""

    pages: PagedCache
    model: ReadbackModel
    engine: Engine
    requests: dict[int, Request] = field(default_factory=dict)
    generated: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    scores: dict[int, tuple[float, ...]] = field(default_factory=dict)
    ended: dict[tuple[int, int], str] = field(default_factory=dict)
    operations: int = 0
    refused: int = 0

    @staticmethod
    def of(count: int, size: int, limits: SchedulerLimits, cached: bool) -> "Simulation":
        pages = PagedCache(count, size)
        model, module = ReadbackModel(pages), skeleton()
        memory = Memory(module, pages, cached)
        return Simulation(pages, model, Engine(model.run, memory, limits, count * size, lambda r: check(module, r), entropy=lambda: SEED))

    def note(self, outputs: list[Output]) -> None:
        for out in outputs:
            key = out.request, out.index
            if key in self.ended:
                self.model.faults.append(f"{key}: an output after its end")
            if out.token is not None:
                self.generated.setdefault(key, []).append(out.token.id)
            if out.scores:
                self.scores[out.request] = out.scores
            if out.ended:
                self.ended[key] = out.ended

    def step(self) -> None:
        self.note(self.engine.step())
        self.pages.sound()
        self.operations += 1

    def faults(self) -> str:
        """Describe what is wrong after all have ended; "" if nothing is."""
        faults = list(self.model.faults)
        for number, request in self.requests.items():
            for index in range(request.n):
                expected, generated = text_alone(request, index), self.generated.get((number, index), [])
                ended = self.ended.get((number, index))
                if ended == "cancelled":
                    expected = expected[: len(generated)]
                right = generated == expected and ended in ("cancelled", "stop", "length")
                if not right:
                    faults.append(f"{number}.{index} {ended}: {generated} is not {expected}")
        cache = self.engine.storage.cache  # type: ignore[attr-defined]
        if cache is not None:
            cache.forget()
        if self.pages.free_pages != self.pages.count or self.pages.holders():
            faults.append(f"{self.pages.count - self.pages.free_pages} pages are left behind, {self.pages.holders()}")
        return "; ".join(faults[:3])


MODULES: list[Decoder] = []


def skeleton() -> Decoder:
    """Return the model that the pages belong to; it never runs."""
    if not MODULES:
        module = build(LLAMA)
        assert isinstance(module, Decoder)
        MODULES.append(module)
    return MODULES[0]


def text_alone(request: Request, index: int) -> list[int]:
    """Return a request's text when it runs alone and nothing is cached."""
    out: list[int] = []
    while len(out) < request.new and not (out and out[-1] in request.stops):
        how = replace(request.sampling, seed=SEED) if request.sampling.seed is None else request.sampling
        out.append(choose(next_logits([*request.prompt, *out]), how, request.prompt, out, index))
    return out


def random_request(draw: random.Random, most: int) -> Request:
    """Return a request whose prompt often begins as others do. Some are malformed."""
    start = [draw.randrange(3)] * draw.choice([0, 3, 8, 17])
    prompt = tuple(start + [draw.randrange(4) for _ in range(draw.randint(1, 9))])
    if draw.random() < 0.05:
        prompt = draw.choice([(), (V,), (-1, 2), (0,) * (most + 1)])
    sampling = Sampling() if draw.random() < 0.5 else Sampling(temperature=1.0, seed=draw.randrange(9))
    stops = frozenset(draw.sample(range(V), 12)) if draw.random() < 0.5 else frozenset[int]()
    return Request(prompt, draw.randint(0, 12), sampling, stops, draw.choice([1, 1, 1, 2, 3]), scored=draw.random() < 0.1)


def submit_some(draw: random.Random, simulation: Simulation) -> None:
    """Submit a few requests, and now and then cancel one."""
    for _ in range(draw.choice([0, 0, 1, 1, 4])):
        request = random_request(draw, simulation.engine.capacity)
        simulation.operations += 1
        try:
            simulation.requests[simulation.engine.submit(request)] = request
        except UseError:
            simulation.refused += 1
    if simulation.requests and draw.random() < 0.15:
        simulation.engine.cancel(draw.randrange(-1, simulation.engine.count + 1))


def run_simulation(draw: random.Random, steps: int = 60) -> Simulation:
    """Run a simulation of `steps` steps, and on until every request has ended."""
    size = draw.choice([1, 2, 3, 4, 16])
    limits = SchedulerLimits(draw.choice([1, 2, 5, 16, 64]), draw.choice([3, 4, 8]), draw.choice([2, 50]), draw.random() < 0.1)
    simulation = Simulation.of(-(-48 // size) + draw.randint(0, 20), size, limits, draw.random() < 0.7)
    for _ in range(steps):
        submit_some(draw, simulation)
        simulation.step()
    left = 10_000
    while not simulation.engine.idle and left:
        left -= 1
        simulation.step()
    if not left:
        simulation.model.faults.append("it never ends")
    simulation.operations += simulation.model.rows
    return simulation
