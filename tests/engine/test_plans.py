"""A batch's replayed step equals the forward it was recorded from, bit for bit, for any requests, alone and together."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import config as c
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine import plans
from pellucid.engine.plans import DecodeStep, Plans
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from pellucid.watching.watch import watch
from test_plan import FAMILIES, GPT2, LLAMA, QWEN3, model_of, needs_kernels
from tiny import GPT_OSS, QWEN2_MOE, swapped

CROWDS = {**FAMILIES, "gpt_oss": GPT_OSS, "qwen2_moe": QWEN2_MOE}
DTYPES = [torch.float32, torch.bfloat16]
LENGTHS = {"a": 7, "b": 1, "c": 19, "d": 4, "e": 11}
Steps = list[dict[str, int]]


def steps(vocab: int, count: int = 24, seed: int = 0) -> Steps:
    """Return steps of one token each for some of the requests, in any order."""
    draw = random.Random(seed)
    return [{r: draw.randrange(vocab) for r in draw.sample(list(LENGTHS), draw.randint(1, len(LENGTHS)))} for _ in range(count)]


def prefilled(model: Decoder, size: int, planned: bool, seed: int = 0, skip: int = 0) -> Plans:
    """Return requests whose prompts are read, on pages in a shuffled order."""
    pages = PagedCache(200 // size + 8, size)
    random.Random(seed).shuffle(pages.allocators[None].free)
    draw = random.Random(1)
    for request, n in LENGTHS.items():
        step = Step.paged(pages, {request: n})
        pages.angle_length[request] = n + 30
        with torch.no_grad():
            model(torch.tensor([[draw.randrange(model.config.vocab) for _ in range(n)]]), step)
        step.advance()
    return Plans(model, pages, planned)


def run(made: Plans, feed: Steps) -> dict[str, Tensor]:
    """Return the logits of each request over all its steps."""
    got: dict[str, list[Tensor]] = {}
    for chunk in feed:
        for request, row in zip(chunk, made.step(chunk).clone(), strict=True):
            got.setdefault(request, []).append(row)
    return {r: torch.stack(rows) for r, rows in got.items()}


def alone(made: Plans, feed: Steps) -> dict[str, Tensor]:
    return run(made, [{r: t} for chunk in feed for r, t in chunk.items()])


def alike(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[r], b[r]) and bool(a[r].isfinite().all()) for r in a)


def holds(cfg: c.Config, dtype: torch.dtype, size: int = 4) -> bool:
    """Return True if planned in a batch, planned alone and forwarded in a batch give the same bits."""
    model = model_of(cfg, dtype)
    feed = steps(cfg.vocab)
    want = run(prefilled(model, size, False), feed)
    batch = prefilled(model, size, True, seed=1)
    good = alike(run(batch, feed), want) and alike(alone(prefilled(model, size, True, seed=2), feed), want)
    assert all(buffers.plan is not None and not buffers.refused for buffers in batch.buffers.values())
    return good and len(batch.buffers) == len(LENGTHS)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", CROWDS)
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.quick(4)
def test_a_planned_batch_is_each_alone_bit_for_bit(family: str, dtype: torch.dtype, size: int) -> None:
    assert holds(CROWDS[family], dtype, size)


def swap_rows(self: Plans, feed: Any) -> Any:
    return REAL(self, dict(reversed(feed.items())) if len(feed) == 3 else feed)


REAL = Plans.step


def stale(name: str, value: Callable[[Plans, int], None]) -> Callable[..., Plans]:
    """Return a `Plans.buffers_for` that leaves an old buffer under `name`."""

    def place(self: Plans, n: int) -> Any:
        made = PLACE(self, n)
        if made.plan is not None:
            setattr(made, name, value(made))
            vars(made).pop("numbers", None)  # of the old one
        return made

    return place


PLACE = Plans.buffers_for


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "rows swapped": (Plans, "step", swap_rows),
    "a table of another": (Plans, "buffers_for", stale("tables", lambda p: {g: t.clone() for g, t in p.tables.items()})),
    "a length of before": (Plans, "buffers_for", stale("positions", lambda p: p.positions.clone())),
    "a token of before": (Plans, "buffers_for", stale("tokens", lambda p: p.tokens.clone())),
}


@needs_kernels
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_place_is_seen(mutant: str) -> None:
    with swapped(*MUTANTS[mutant]):
        assert not holds(QWEN3, torch.float32)


@needs_kernels
@pytest.mark.parametrize("wrong", ["one table for all", "positions of the first"])
def test_a_wrong_call_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = native.attend

    def attend(q: Tensor, pools: Any, table: Tensor, positions: Tensor, *how: Any, **more: Any) -> Tensor:
        if wrong == "one table for all":
            return real(q, pools, table[0] if table.ndim == 2 else table, positions, *how, **more)
        return real(q, pools, table, positions[:, :1].expand_as(positions).contiguous(), *how, **more)

    monkeypatch.setattr(native, "attend", attend)
    if wrong == "one table for all":
        assert not holds(QWEN3, torch.float32)
    else:
        with pytest.raises(AssertionError):  # the copy is a torch op, so nothing is planned
            holds(QWEN3, torch.float32)


@needs_kernels
def test_one_plan_for_each_number_of_rows() -> None:
    """A plan serves other requests on other pages; a new request in a batch of the same size records nothing."""
    made = prefilled(model_of(LLAMA, torch.bfloat16), 4, True)
    made.step({"a": 1, "b": 2})
    plan = made.buffers[2].plan
    made.pages.release("a")
    made.step({"e": 3, "c": 2})
    assert made.buffers[2].plan is plan is not None and set(made.buffers) == {2}
    logits = made.step({"c": 9, "d": 2})
    assert made.best.tolist() == logits.argmax(-1).tolist()
    assert [made.pages.length[r] for r in "bcde"] == [2, 21, 5, 12]


@needs_kernels
def test_pools_that_are_made_anew_drop_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def right() -> bool:
        model = model_of(LLAMA, torch.float32)
        made, free = prefilled(model, 4, True), prefilled(model, 4, False)
        made.step({"a": 1, "b": 2}), free.step({"a": 1, "b": 2})
        pools = made.pages.pools
        for part, tensors in pools.items():
            pools[part] = tuple(p.clone() for p in tensors)
            for p in tensors:
                p.fill_(float("nan"))
        return torch.equal(made.step({"a": 5, "c": 2}), free.step({"a": 5, "c": 2}))

    assert right()
    monkeypatch.setattr(plans, "addresses", lambda tensors: ())
    assert not right()


@needs_kernels
@pytest.mark.parametrize("n", [16, 17])
def test_more_rows_than_the_kernels_take(n: int) -> None:
    """One row more than the kernels take runs the forward; each request is what it is alone up to rounding."""
    model, pages = model_of(GPT2, torch.float32), PagedCache(40, 4)
    made = Plans(model, pages)
    for i in range(n):
        step = Step.paged(pages, {i: 3})
        with torch.no_grad():
            model(torch.tensor([[i, 2 * i, 5]]), step)
        step.advance()
    got = made.step({i: i for i in range(n)})
    assert set(made.buffers) == ({n} if n <= native.ROWS else set())
    for i in range(n):
        with torch.no_grad():
            want = model(torch.tensor([[i, 2 * i, 5, i]]))[0, -1]
        assert (got[i] - want).abs().max() < 2e-5 * want.abs().max() and made.best[i] == got[i].argmax()
    assert [pages.length[i] for i in range(n)] == [4] * n


@needs_kernels
def test_a_watched_step_of_a_batch_gives_the_same() -> None:
    """A watched step gives the same bits, and attention's inside is recorded per request although one call serves all."""
    model = model_of(QWEN3, torch.bfloat16)
    made, free, feed = prefilled(model, 4, True), prefilled(model, 4, False), {"c": 5, "a": 3, "d": 1}
    for _ in range(2):
        assert torch.equal(made.step(feed), free.step(feed))
    with watch(model, only="layers.*.attn.*") as seen:
        watched = made.step(feed)
    assert torch.equal(watched, free.step(feed))
    patterns = seen.all("layers.1.attn.pattern")
    assert [(s.request, s.shape[-1]) for s in patterns] == [("c", 22), ("a", 10), ("d", 7)]
    assert all(s.source == "executed" and s.error is None for s in patterns)  # the kernel's own, not the reference's beside it
    assert all(torch.allclose(s.value.float().sum(-1), torch.ones(()), atol=0.02) for s in patterns)
    assert torch.equal(made.step(feed), free.step(feed))


@needs_kernels
def test_one_call_serves_all_requests() -> None:
    """A layer's attention and each of its products are one call for any number of requests."""
    made = prefilled(model_of(LLAMA, torch.float32), 4, True)
    made.step({"a": 1}), made.step(dict.fromkeys("abcde", 1))
    counts = [[line.op.name for line in made.buffers[n].plan.calls].count("attend") for n in (1, 5)]
    assert counts == [3, 3] and len(made.buffers[1].plan.calls) == len(made.buffers[5].plan.calls)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@needs_kernels
def test_rows_are_the_ordinary_step_where_no_kernel_fits() -> None:
    """In float64 the same rows run through torch, in the same places."""
    model, feed = model_of(LLAMA, torch.float64), steps(131, 6)
    got, want = run(prefilled(model, 4, True), feed), run(prefilled(model, 4, False), feed)
    with swapped(plans, "DecodeStep", lambda positions, spans, pages, **rest: Step(positions, spans, pages)):
        plain = run(prefilled(model, 4, True), feed)
    assert alike(got, want) and alike(plain, want) and issubclass(DecodeStep, Step)
