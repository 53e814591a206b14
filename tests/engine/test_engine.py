"""The engine's texts are the plain loop's for any pages, chunks, cache, other requests and preemptions."""

import itertools
import os
import random
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch

from pellucid.batch.kv_cache import PagedCache
from pellucid.engine import scheduler
from pellucid.engine.engine import Engine
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.ops.sampling.settings import Sampling
from pellucid.watching.watch import watch
from simulate import Simulation, random_request, run_simulation
from test_generate import PROMPTS, SOURCES, has_encoder, loop, model_of
from tiny import FAMILIES, swapped

FULL = bool(os.environ.get("PELLUCID_FULL"))
NEW = 6
SHARED = [9, 9, 4, 7, 1, 2, 3, 60, 61]
TEXTS = [*PROMPTS, [*SHARED, 5], [*SHARED, 6, 6], SHARED]
SIZES, CHUNKS, CACHED = (1, 2, 16, 17), (1, 2, 3, 5, 7, 11, 16, 17, 64), (True, False)


def requests_of(family: str) -> list[Request]:
    if has_encoder(family):
        return [Request((0,), NEW, source=tuple(s)) for s in SOURCES]
    return [Request(tuple(p), NEW) for p in TEXTS]


WANTED: dict[str, list[list[int]]] = {}


def wanted(family: str) -> list[list[int]]:
    """Return the plain loop's texts, computed once."""
    if family not in WANTED:
        model = model_of(family)
        WANTED[family] = [loop(model, r.prompt, NEW, (), r.source) for r in requests_of(family)]
    return WANTED[family]


def texts(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """Return the texts of requests that are all submitted at once."""
    numbers, got = [engine.submit(r) for r in requests], dict[int, list[int]]()
    for out in engine.outputs():
        assert out.error is None
        if out.token is not None:
            got.setdefault(out.request, []).append(out.token.id)
    return [got.get(n, []) for n in numbers]


def built(family: str, size: int, rows: int, cached: bool, tokens: int = 400, running: int = 64) -> Engine:
    return Engine.of(model_of(family).module, tokens, SchedulerLimits(rows, running), size, cached)


GRID = list(itertools.product(("gpt2", "gpt_oss", "deepseek_v3"), SIZES, range(1, 65) if FULL else CHUNKS, CACHED))


@pytest.mark.parametrize(("family", "size", "rows", "cached"), GRID if FULL else random.Random(3).sample(GRID, 12))
@pytest.mark.quick(4)
def test_pages_chunks_and_cache(family: str, size: int, rows: int, cached: bool) -> None:
    """The same engine gives the same texts twice; the second time its cache holds the prefixes."""
    engine = built(family, size, rows, cached)
    assert texts(engine, requests_of(family)) == wanted(family)
    assert texts(engine, requests_of(family)) == wanted(family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_every_family(family: str) -> None:
    for size, rows, cached in ((1, 3, True), (17, 64, False), (16, 1, True)):
        assert texts(built(family, size, rows, cached), requests_of(family)) == wanted(family)


class Stingy(Memory):
    """A memory that refuses to grow once, at the given question."""

    def __init__(self, inner: Memory, at: int) -> None:
        self.__dict__ |= inner.__dict__
        self.left = at

    def can_grow(self, key: Hashable, tokens: int) -> bool:
        self.left -= 1
        return self.left != 0 and super().can_grow(key, tokens)


@pytest.mark.parametrize("family", ["gpt2", "gpt_oss", "deepseek_v3", "t5"])
@pytest.mark.quick(4)
def test_preempted_at_every_step(family: str) -> None:
    """The texts are the same whichever question is refused."""
    for cached in CACHED:
        for at in itertools.count(1, 1 if FULL else 13):
            engine = built(family, 2, 5, cached)
            engine.storage = Stingy(engine.storage, at)  # type: ignore[arg-type]
            assert texts(engine, requests_of(family)) == wanted(family), at
            if engine.storage.left > 0:  # the engine asked fewer questions
                break
        assert at > 20


def test_few_pages() -> None:
    """Texts wait if they do not fit at once; a text that never fits is refused, and so is one more than the queue takes."""
    engine = built("gpt2", 2, 8, True, tokens=24)
    assert texts(engine, requests_of("gpt2")) == wanted("gpt2")
    with pytest.raises(UseError, match="24"):
        engine.submit(Request((1,) * 20, 5))
    engine.limits = SchedulerLimits(8, 64, 2)
    for _ in range(2):
        engine.submit(Request((1,), 5))
    with pytest.raises(UseError, match="2"):
        engine.submit(Request((1,), 5))


def test_a_prompt_longer_than_its_windows_pages() -> None:
    """A layer with a window has pages for the window alone, and a longer prompt is read chunk by chunk."""
    model, prompt = model_of("gpt_oss"), tuple(range(80))
    engine = Engine.of(model.module, 100, SchedulerLimits(1, 8), 1)
    assert min(group.count for group in engine.storage.pages.windowed) < len(prompt)  # type: ignore[attr-defined]
    engine.submit(Request(prompt, 2))
    outputs = [out for _ in range(120) for out in engine.step()]
    assert [out.token.id for out in outputs if out.token] == loop(model, prompt, 2)


def test_one_forward_a_step() -> None:
    """Each linear is called once a step, for any number of requests."""
    engine = built("gpt2", 16, 64, False)
    module, calls = engine.storage.module, [0]  # type: ignore[attr-defined]
    module.layers[1].ffn.down.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    for r in requests_of("gpt2"):
        engine.submit(r)
    for step in range(1, NEW + 1):
        engine.step()
        assert calls[0] == step
    assert engine.idle


def test_several_texts_of_one_prompt() -> None:
    """The n texts of a request share the prompt's pages, draw by seeds of their own, and are what each is alone."""
    model = model_of("llama")
    how = Sampling(temperature=1.5, seed=11)
    engine = Engine.of(model.module, 400, size=2)
    got: dict[int, list[int]] = {}
    number = engine.submit(Request(tuple(SHARED), 12, how, n=4))
    engine.step()
    assert engine.storage.pages.count - engine.storage.pages.free_pages == 5  # type: ignore[attr-defined]
    engine = Engine.of(model.module, 400, size=2)
    number = engine.submit(Request(tuple(SHARED), 12, how, n=4))
    for out in engine.outputs():
        assert out.request == number and out.token is not None
        got.setdefault(out.index, []).append(out.token.id)
    assert len({tuple(t) for t in got.values()}) == 4
    again = Engine.of(model.module, 60, size=1, prefix_cache=False)
    again.submit(Request(tuple(SHARED), 12, how, n=2))
    assert [o.token.id for o in again.outputs() if o.index == 1 and o.token] == got[1]


def test_scores() -> None:
    """Log-probabilities of the prompt, in chunks, and of new tokens with the likeliest beside them are those of a forward."""
    model = model_of("llama")
    ids = torch.tensor([TEXTS[4]])
    full = model.logprobs(ids)[0]
    for rows in (1, 3, 64):
        engine = Engine.of(model.module, 100, SchedulerLimits(rows), 4)
        for _ in range(2):  # a cache that skips rows would skip scores
            engine.submit(Request(tuple(TEXTS[4]), 2, logprobs=3, scored=True))
            first, second = list(engine.outputs())
            assert torch.allclose(torch.tensor(first.scores, dtype=torch.float64), full, rtol=0, atol=1e-10) and not second.scores
    assert first.token is not None and second.token is not None
    last = torch.tensor([[*TEXTS[4], first.token.id, second.token.id]])
    assert [first.token.logprob, second.token.logprob] == pytest.approx(model.logprobs(last)[0, -2:].tolist(), abs=1e-10)
    assert first.token.top[0] == (first.token.id, first.token.logprob) and len(first.token.top) == 3
    assert first.token.top[0][1] >= first.token.top[1][1] >= first.token.top[2][1]


def test_cancelled_at_any_moment() -> None:
    """A request cancelled in the queue, in its prompt or while decoding ends once as cancelled, and the others do not change."""
    for at in range(12):
        engine = built("gpt2", 2, 6, True)
        numbers = [engine.submit(r) for r in requests_of("gpt2")]
        got: dict[int, list[int]] = {n: [] for n in numbers}
        ends: dict[int, list[str]] = {n: [] for n in numbers}
        for step in itertools.count():
            if step == at:
                engine.cancel(numbers[2])
            for out in engine.step():
                got[out.request] += [out.token.id] if out.token else []
                ends[out.request] += [out.ended] if out.ended else []
            if engine.idle:
                break
        assert all(len(e) == 1 for e in ends.values())
        for n, want in zip(numbers, wanted("gpt2"), strict=True):
            assert got[n] == (want if ends[n] == ["length"] else want[: len(got[n])])
        assert (ends[numbers[2]] == ["cancelled"]) == (len(got[numbers[2]]) < NEW)
        pages = engine.storage.pages  # type: ignore[attr-defined]
        engine.storage.cache.forget()  # type: ignore[attr-defined]
        assert pages.free_pages == pages.count


@pytest.mark.parametrize("family", ["gpt2", "gpt_oss", "deepseek_v3", "t5"])
@pytest.mark.quick(2)
def test_watch_one_of_many(family: str) -> None:
    """A watch of one request records its rows alone; no text changes, and no forward is added."""
    requests, calls = requests_of(family), [0]
    engine = built(family, 2, 7, True)
    engine.module.embed.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    numbers = [engine.submit(r) for r in requests]
    got: dict[int, list[int]] = {n: [] for n in numbers}
    steps, batched = 0, list[torch.Tensor]()
    named = dict(engine.module.named_modules())
    path = "decoder.layers.1.ffn" if has_encoder(family) else "layers.1.ffn"
    named[path].register_forward_hook(lambda module, given, out: batched.append(out))
    with engine.watch(numbers[2]) as seen:
        while not engine.idle:
            steps += 1
            for out in engine.step():
                assert out.token is not None
                got[out.request].append(out.token.id)
    assert [got[n] for n in numbers] == wanted(family)
    assert calls[0] == steps or has_encoder(family)  # an encoder looks at the same table
    assert {s.request for s in seen} == {numbers[2]} and len(seen.all("sample.logits")) == NEW
    rows = torch.cat([s.value for s in seen.all(path)], 1)
    assert rows.shape[1] == len(requests[2].prompt) + NEW - 1
    for s in seen.all(path):
        n = s.value.shape[1]
        assert any(torch.equal(batch_rows[:, i : i + n], s.value) for batch_rows in batched for i in range(batch_rows.shape[1] - n + 1))
    model = model_of(family)
    text = torch.tensor([[*requests[2].prompt, *got[numbers[2]][:-1]]])
    given = (text,) if requests[2].source is None else (torch.tensor([requests[2].source]), text)
    with watch(model.module, only=path) as alone, torch.no_grad():
        model.module(*given)
    assert torch.allclose(rows, alone[path].value, rtol=0, atol=1e-10)


def test_an_edit_is_one_request_s_own() -> None:
    """An edit changes its request's text alone; what it stored serves no other text, and it uses nothing from the cache."""
    engine = built("gpt2", 2, 64, True)
    requests = [Request(tuple(SHARED), NEW)] * 3
    assert texts(engine, requests) == [wanted("gpt2")[-1]] * 3
    numbers = [engine.submit(r) for r in requests]
    got: dict[int, list[int]] = {n: [] for n in numbers}
    with engine.watch(numbers[1], edit={"layers.0.attn": lambda x: -3 * x}):
        for out in engine.outputs():
            got[out.request] += [out.token.id] if out.token else []
    assert got[numbers[0]] == got[numbers[2]] == wanted("gpt2")[-1] != got[numbers[1]]
    model = model_of("gpt2")
    with watch(model.module, edit={"layers.0.attn": lambda x: -3 * x}):
        assert loop(model, SHARED, NEW) == got[numbers[1]]
    assert texts(engine, requests) == [wanted("gpt2")[-1]] * 3


@pytest.mark.parametrize("seed", range(2000 if FULL else 40))
@pytest.mark.quick(12)
def test_lives(seed: int) -> None:
    simulation = run_simulation(random.Random(f"life:{seed}"))
    assert simulation.faults() == ""


def test_lives_replay() -> None:
    a, b = (run_simulation(random.Random("again")) for _ in range(2))
    assert a.generated == b.generated and a.ended == b.ended and a.operations == b.operations and a.requests


def test_simulations_meet_what_they_are_for() -> None:
    """The simulations meet preemption, cancelling, refusal, sharing and forks."""
    met = {"off": 0}
    close = Memory.close

    def noted(self: Memory, sequence: Any) -> None:
        met["off"] += sequence.number in range(10**9) and sequence.pending > 0
        close(self, sequence)

    with swapped(Memory, "close", noted):
        simulations = [run_simulation(random.Random(f"life:{seed}")) for seed in range(12)]
    ends = [e for simulation in simulations for e in simulation.ended.values()]
    assert met["off"] and {"cancelled", "stop", "length"} <= set(ends) and sum(simulation.refused for simulation in simulations)
    assert sum(simulation.engine.storage.cache.hits for simulation in simulations if simulation.engine.storage.cache)  # type: ignore[attr-defined]


def leak(self: Memory, sequence: Any) -> None:
    """Forget the length of a request without giving its pages back."""
    self.pages.length.pop(sequence.key, None)


def unshared(self: PagedCache, request: Hashable, new: Hashable) -> None:
    """Fork a request without its stored rows."""
    self.reserve(new, self.length[request])
    self.length[new] = self.length[request]


MUTANTS: list[tuple[Any, str, Any]] = [
    (Memory, "close", leak),
    (PagedCache, "fork", unshared),
    (scheduler, "admit", lambda *given: None),
]


@pytest.mark.parametrize(("owner", "name", "value"), MUTANTS)
def test_mutants_are_seen(owner: Any, name: str, value: Any) -> None:
    """Seen are a leak, forks without their rows, and a queue that admits none."""
    requests = [Request(tuple(SHARED), NEW, n=2), *(Request(tuple(p), NEW) for p in TEXTS)]

    def right() -> bool:
        simulation = Simulation.of(40, 2, SchedulerLimits(16, 8), True)
        try:
            for r in requests:
                simulation.requests[simulation.engine.submit(r)] = r
            for _ in range(200):
                simulation.step()
            return simulation.engine.idle and simulation.faults() == ""
        except (UseError, KeyError, AssertionError, RuntimeError):
            return False

    assert right()
    with swapped(owner, name, value):
        passes = right()
    assert not passes


def test_drawn_requests_are_refused_or_run() -> None:
    draw = random.Random(1)
    assert len({random_request(draw, 40).prompt for _ in range(50)}) > 30
