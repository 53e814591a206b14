"""A replayed plan equals the forward it was recorded from, bit for bit; some steps cannot be plans; calls wait for their inputs."""

import dataclasses
import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from covering import FULL
from pellucid import config as c
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine.plans import Plans
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from pellucid.ops.native import library, planned_calls
from pellucid.ops.native import plan as plans
from pellucid.watching.watch import watch

GPT2 = c.Config(
    97, 48, (c.Layer(c.Attention(4, 4, 12, bias=True, out_bias=True), c.Mlp(100, "gelu_tanh", gated=False, bias=True)),) * 3,
    tied=True, norm="layer", positions=128,
)  # fmt: skip
LLAMA = c.Config(131, 40, (c.Layer(c.Attention(4, 2, 10, c.Rope(10, scaling=c.Llama3(8.0, 1.0, 4.0, 64))), c.Mlp(72)),) * 3)
QWEN3 = c.Config(101, 64, (c.Layer(c.Attention(6, 2, 24, c.Rope(24, 1e6), qk_norm=True), c.Mlp(80)),) * 3, tied=True, eps=1e-6)
FAMILIES = {"gpt2": GPT2, "llama": LLAMA, "qwen3": QWEN3}
PROMPT = [5, 3, 80, 11, 11, 2, 47]


def model_of(cfg: c.Config, dtype: torch.dtype, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    model = Decoder(cfg)
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
        p.data = (p.data + (p.ndim == 1)).to(dtype)  # norms near 1; no bias and no weight is 0
    return model.requires_grad_(False)


def tokens(model: Decoder, n: int = 40) -> list[int]:
    draw = random.Random(1)
    return [draw.randrange(model.config.vocab) for _ in range(n)]


class Alone:
    """One text on pages of its own: its prompt by the forward, then token by token by its plan. planned: False never records."""

    def __init__(self, model: Decoder, capacity: int, size: int = 64, planned: bool = True) -> None:
        self.model, self.pages = model, PagedCache(-(-capacity // size), size)
        self.plans = Plans(model, self.pages, planned)

    @property
    def plan(self) -> native.Plan | None:
        return self.plans.buffers[1].plan if 1 in self.plans.buffers else None

    @property
    def refused(self) -> str | None:
        return self.plans.buffers[1].refused if 1 in self.plans.buffers else None

    def start(self, ids: list[int]) -> Tensor:
        """Forget the last text and read this one; return the logits [V] of its next token."""
        self.pages.release(0)
        step = Step.paged(self.pages, {0: len(ids)})
        with torch.no_grad():
            logits: Tensor = self.model(torch.tensor([ids]), step)[0, -1]
        step.advance()
        return logits

    def step(self, token: int) -> Tensor:
        return self.plans.step({0: token})[0]


def run(decode: Alone, feed: list[int], shuffle: int = 0) -> tuple[Tensor, Tensor]:
    """Return all logits of a prompt and a feed, and the whole cache after them, on pages in a shuffled order."""
    pages = decode.pages
    pages.release(0)
    pages.allocators[None].free.sort()
    random.Random(shuffle).shuffle(pages.allocators[None].free)
    for pools in pages.pools.values():
        for p in pools:
            p.zero_()
    seen = [decode.start(PROMPT).clone()]
    seen += [decode.step(t).clone() for t in feed]
    cache = torch.cat([p.flatten() for pools in pages.pools.values() for p in pools])
    return torch.stack(seen), cache


def pair(cfg: c.Config, dtype: torch.dtype, size: int = 4) -> tuple[Alone, Alone]:
    """Return the same model without and with plans, on two sets of pages."""
    model = model_of(cfg, dtype)
    return Alone(model, 64, size, planned=False), Alone(model, 64, size)


def same(decodes: tuple[Alone, Alone], shuffle: int = 0) -> bool:
    feed = tokens(decodes[0].model)
    (logits, cache), (other, others_cache) = (run(d, feed, shuffle) for d in decodes)
    return torch.equal(logits, other) and torch.equal(cache, others_cache) and bool(logits.isfinite().all())


DTYPES, SIZES = (torch.float32, torch.bfloat16, torch.float64), (1, 5, 16)
GRID = list(itertools.product(FAMILIES, DTYPES, SIZES))
SQUARE = [(f, d, SIZES[(i + k) % 3]) for i, f in enumerate(FAMILIES) for k, d in enumerate(DTYPES)]  # each family with each size


@pytest.mark.parametrize(("family", "dtype", "size"), GRID if FULL else SQUARE)
@pytest.mark.quick(4)
def test_plan_is_forward_bit_for_bit(family: str, dtype: torch.dtype, size: int) -> None:
    """All logits of 40 steps and the cache are equal. Where no kernel fits, both are torch's and no plan is made."""
    decodes = pair(FAMILIES[family], dtype, size)
    assert same(decodes, size)
    native_runs = native.available() and dtype is not torch.float64
    assert (decodes[1].plan is not None) == native_runs
    assert decodes[0].plan is None
    assert (decodes[1].refused is None) == (native_runs or not native.available())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_steps_are_the_whole_forward(family: str, dtype: torch.dtype) -> None:
    """Decoding gives the logits of one forward over the text up to rounding, with kernels and without."""
    model = model_of(FAMILIES[family], dtype)
    feed = tokens(model)
    truth = model_of(FAMILIES[family], dtype).double()(torch.tensor([PROMPT + feed]))[0, len(PROMPT) - 1 :]
    with native.off():
        theirs = model(torch.tensor([PROMPT + feed]))[0, len(PROMPT) - 1 :]
        without, _ = run(Alone(model, 64), feed)
    logits, _ = run(Alone(model, 64), feed)
    floor = 2e-5 * truth.abs().max()
    assert (logits.double() - truth).abs().max() <= 2 * (theirs.double() - truth).abs().max() + floor
    assert (without.double() - truth).abs().max() <= 2 * (theirs.double() - truth).abs().max() + floor


def recorded(cfg: c.Config = LLAMA, dtype: torch.dtype = torch.bfloat16) -> Alone:
    decode = Alone(model_of(cfg, dtype), 64, 4)
    run(decode, tokens(decode.model, 2))
    assert decode.plan is not None
    return decode


def needs_kernels(test: Callable[..., None]) -> Callable[..., None]:
    """Where there are no kernels there is no plan: the test is then that recording says so."""
    if native.available():
        return test

    def without() -> None:
        with pytest.raises(native.Unplannable), native.record():
            pass

    return without


@needs_kernels
def test_a_plan_serves_other_requests_and_other_pages() -> None:
    plain, planned = pair(QWEN3, torch.bfloat16, 3)
    feed = tokens(plain.model)
    run(planned, feed[:3])
    plan = planned.plan
    before = planned.pages.allocators[None].tables[0][:5].tolist()
    first = run(plain, feed, 5)
    second = run(planned, feed, 5)
    assert planned.pages.allocators[None].tables[0][:5].tolist() != before
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1]) and planned.plan is plan


@needs_kernels
def test_greedy_is_the_same_with_and_without_a_plan() -> None:
    plain, planned = pair(dataclasses.replace(QWEN3, tied=False), torch.float32)

    def greedy(decode: Alone) -> list[int]:
        """Generate the step's own likeliest tokens."""
        text = [int(decode.start(PROMPT).argmax())]
        while len(text) < 50:
            decode.step(text[-1])
            text.append(int(decode.plans.best))
        return text

    text = greedy(plain)
    assert text == greedy(planned) == greedy(planned)
    assert len(set(text)) > 5


@needs_kernels
@pytest.mark.parametrize(
    "touch",
    [lambda x: x * 1.0, lambda x: x.clone(), lambda x: x + torch.ones(1), lambda x: bool(x.sum() > 0), lambda x: x.flatten().tolist(),
     lambda x: x.numpy(), lambda x: torch.zeros(3), lambda x: x[torch.tensor([0])], lambda x: x.cumsum(-1), lambda x: x.copy_(x)],
)  # fmt: skip
def test_a_torch_op_that_touches_data_is_refused(touch: Callable[[Tensor], object]) -> None:
    x, w = torch.ones(1, 8), torch.ones(4, 8)
    with pytest.raises(native.Unplannable), native.record():
        touch(native.linear(x, w, None))
    touch(x)  # and nothing stays refused


@needs_kernels
def test_views_are_allowed() -> None:
    x, w = torch.ones(1, 1, 8), torch.ones(4, 8)
    with native.record() as recording:
        y = native.linear(x, w, None).unflatten(-1, (2, 2)).flatten(-2)[:, -1:].view(1, 4).detach()
        z = native.add(y, y)
    x.fill_(3.0)
    recording.plan().replay()
    assert z.tolist() == [[48.0] * 4]


@needs_kernels
def test_a_model_that_is_no_plan_runs_its_forward() -> None:
    """Keys of distances have no kernel, so the model is refused a plan and its forward runs."""
    distant = c.Layer(dataclasses.replace(LLAMA.layers[0].attn, distances=True), LLAMA.layers[0].ffn)
    decodes = pair(dataclasses.replace(LLAMA, layers=(distant, *LLAMA.layers[1:])), torch.float32)
    assert same(decodes) and decodes[1].plan is None and decodes[1].refused


@needs_kernels
def test_a_watched_step_gives_the_same() -> None:
    plain, planned = pair(GPT2, torch.bfloat16)
    feed = tokens(plain.model)
    truth, _ = run(plain, feed)
    planned.start(PROMPT)
    got = []
    for i, t in enumerate(feed):
        if i % 3 == 2:
            with watch(planned.model, only="layers.*.mid") as seen:
                got.append(planned.step(t).clone())
            assert len(seen) == 3
        else:
            got.append(planned.step(t).clone())
    assert torch.equal(torch.stack(got), truth[1:])


@needs_kernels
def test_a_plan_falls_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight in other memory drops the plan in the middle of a request; values changed in place keep it."""

    def changed(decode: Alone) -> bool:
        run(decode, tokens(decode.model, 3))
        decode.model.layers[1].ffn.up.weight.data = decode.model.layers[1].ffn.up.weight.data * 3
        got = decode.step(7).clone()
        decode.pages.length[0] -= 1
        return torch.equal(got, Plans(decode.model, decode.pages, planned=False).step({0: 7})[0])

    assert changed(recorded())
    decode = recorded()
    plan, weight = decode.plan, decode.model.layers[0].ffn.up.weight
    before = decode.step(7).clone()
    weight.data.mul_(3)
    decode.pages.length[0] -= 1
    assert not torch.equal(decode.step(7), before) and decode.plan is plan
    monkeypatch.setattr("pellucid.engine.plans.addresses", lambda tensors: ())
    assert not changed(recorded())


@needs_kernels
def test_hooks_are_no_plan() -> None:
    """A hook that is added between two steps makes the next step run the forward."""
    decode, calls = recorded(), []
    plan = decode.plan
    handle = decode.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    decode.step(3)
    run(decode, tokens(decode.model, 5))
    assert len(calls) == 7
    handle.remove()
    run(decode, tokens(decode.model, 5))
    assert len(calls) == 7 and decode.plan is plan


@needs_kernels
def test_a_plan_owns_what_it_points_to() -> None:
    x, w = torch.full((1, 64), 2.0), torch.ones(3, 64)
    with native.record() as recording:
        y = native.linear(x, w, None)
    plan = recording.plan()
    del recording, x, w
    for _ in range(50):
        torch.full((1, 64), 9.0), torch.full((3, 64), 9.0)
    plan.replay()
    assert y.tolist() == [[128.0] * 3]


def backwards(plan: native.Plan, pools: list[Tensor]) -> None:
    """Run a plan's calls one by one, each as late as the waits allow: the worst order of threads."""
    lib = library.lib
    assert lib is not None
    kept = {p.untyped_storage().data_ptr() for p in pools}
    for line in plan.calls:  # what an earlier replay left behind must not help
        for start, stop in line.writes:
            if not any(k <= start < k + 1 for k in kept):
                torch.frombuffer((__import__("ctypes").c_char * (stop - start)).from_address(start), dtype=torch.uint8).fill_(0x7F)
    done: set[int] = set()
    while len(done) < len(plan.calls):
        first = next(i for i in range(len(plan.calls)) if i not in done)  # all before it are done
        i = max(i for i in range(len(plan.calls)) if i not in done and plan.calls[i].after <= first)
        lib.run(plan.calls[i].words, 1, 1)
        done.add(i)


def any_order_is_right(cfg: c.Config = QWEN3) -> bool:
    plain, planned = pair(cfg, torch.float32)
    feed = tokens(plain.model, 6)
    truth, cache = run(plain, feed)
    run(planned, feed[:1])
    assert planned.plan is not None
    pools = [p for pair_ in planned.pages.pools.values() for p in pair_]
    planned.plan.replay = lambda: backwards(planned.plan, pools)
    logits, others = run(planned, feed)
    return torch.equal(logits, truth) and torch.equal(cache, others)


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_any_order_that_the_waits_allow_is_right(family: str) -> None:
    assert any_order_is_right(FAMILIES[family])


@needs_kernels
@pytest.mark.parametrize("wrong", ["no wait", "no reads", "no writes", "by base"])
def test_a_missing_wait_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conflict, add = planned_calls.conflict, plans.Recording.add_call
    if wrong == "no wait":
        monkeypatch.setattr(planned_calls, "conflict", lambda a, b: b.op.name != "attend" and conflict(a, b))
    elif wrong == "no reads":  # a wire that a twin forgot to declare
        monkeypatch.setattr(plans.Recording, "add_call", lambda s, op, line, r, w: add(s, op, line, () if op.name == "add" else r, w))
    elif wrong == "no writes":
        monkeypatch.setattr(plans.Recording, "add_call", lambda s, op, line, r, w: add(s, op, line, r, () if op.name == "store" else w))
    else:  # comparing first addresses instead of ranges misses a view into the middle
        x = torch.ones(1, 4, 8)
        monkeypatch.setattr(planned_calls, "overlap", lambda a, b: any(p == r for p, _ in a for r, _ in b))
        with native.record() as recording:
            native.add(native.add(x, x)[:, 2:], x[:, 2:])
        assert recording.plan().calls[1].after == 0
        monkeypatch.undo()
        assert recording.plan().calls[1].after == 1
        return
    assert not any_order_is_right()


@needs_kernels
def test_waits_are_few() -> None:
    """q, k and v wait for one norm and not for each other; a step has about nine waits a layer."""
    decode = recorded(LLAMA)
    calls = decode.plan.calls
    assert {line.op.name for line in calls} >= {
        "linear",
        "embedding",
        "norm",
        "add",
        "gate",
        "angles",
        "rotate",
        "store",
        "attend",
        "argmax",
    }
    free = sum(line.after <= i - 1 for i, line in enumerate(calls) if i)
    assert free >= 5 * len(decode.model.config.layers)


@needs_kernels
def test_two_threads_may_replay_two_plans() -> None:
    """Two plans replayed at once share no state."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, recorded(cfg), tokens(model_of(cfg, torch.float32))) for cfg in (LLAMA, QWEN3)]
        for cfg, got in zip((LLAMA, QWEN3), runs, strict=True):
            alone = run(Alone(model_of(cfg, torch.bfloat16), 64, 4, planned=False), tokens(model_of(cfg, torch.float32)))
            assert torch.equal(got.result()[0], alone[0])
