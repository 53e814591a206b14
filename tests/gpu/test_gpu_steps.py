"""Decode steps as graphs, on a GPU where there is one, otherwise on a device that stands in for one (tests/support/other_device.py).

A replayed step gives the logits of the model's own forward in float64, in any crowd and at any length; a burst gives the text of single
steps; a watch of a replay sees the tensors of a forward.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from other_device import NAME, TorchGraph, moved, other_device
from pellucid import config as c
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine import graphs
from pellucid.engine.engine import Engine
from pellucid.engine.graphs import Graphs, GraphStep
from pellucid.engine.requests import Request
from pellucid.errors import UseError
from pellucid.ops.gpu import graph
from pellucid.ops.sampling.settings import Sampling
from pellucid.watching.watch import watch
from tiny import DECODERS, GPT2, LLAMA, QWEN3, far, ids, swapped, tiny

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else NAME
WINDOWED = replace(LLAMA, layers=tuple(replace(layer, attn=replace(layer.attn, window=5)) for layer in LLAMA.layers))
CAPPED = replace(LLAMA, layers=tuple(replace(layer, attn=replace(layer.attn, cap=4.0)) for layer in LLAMA.layers))
SLOPED = replace(GPT2, positions=0, layers=tuple(replace(layer, attn=replace(layer.attn, alibi=c.Alibi())) for layer in GPT2.layers))
LONG = c.LongRope((1.0, 1.1, 1.2, 1.3), (2.0, 2.2, 2.4, 2.6), 3, 1.1)  # prompts are longer than 3
STRETCHED = replace(QWEN3, layers=tuple(replace(x, attn=replace(x.attn, width=8, rope=c.Rope(8, scaling=LONG))) for x in QWEN3.layers))
CONFIGS: dict[str, c.Config] = DECODERS | {"windowed": WINDOWED, "capped": CAPPED, "sloped": SLOPED, "stretched": STRETCHED}
NEW = 6


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Stand in for a GPU, where there is none."""
    with ExitStack() as stack:
        if not CUDA:
            stack.enter_context(other_device())
            stack.enter_context(swapped(graphs, "DEVICES", [NAME]))
            stack.enter_context(swapped(graph, "make", [TorchGraph]))
        yield


def there(model: Any) -> Any:
    """Return a copy of a model on the device."""
    model = copy.deepcopy(model).requires_grad_(False)
    return model.cuda() if CUDA else moved(model)


def forward(model: Any, tokens: Tensor) -> Tensor:
    """Return the logits of a plain forward on the CPU, [T V]."""
    with torch.no_grad():
        return model(tokens[None], Step.plain(tokens[None]))[0]


def by_steps(plans: Graphs, texts: list[Tensor], first: int) -> list[Tensor]:
    """Store the first tokens of texts by a forward, and the others by steps of all texts. Returns the logits after each of these."""
    pages, module, out = plans.pages, plans.model, []
    for key, text in enumerate(texts):
        step = Step.paged(pages, {key: first + key})
        with torch.no_grad():
            module(text[None, : first + key].to(DEVICE), step)
        step.advance()
    for i in range(min(map(len, texts)) - first - len(texts)):
        feed = {key: int(text[first + key + i]) for key, text in enumerate(texts)}
        out.append(plans.step(feed).clone().cpu())
    return out


def worst(name: str, count: int) -> float:
    """Return the largest difference between replayed steps of `count` texts and their forwards."""
    model, texts, first = tiny(CONFIGS[name]), [ids(14 + count, seed=n) for n in range(count)], 5
    plans = Graphs(there(model), PagedCache(64, 4, device=DEVICE))
    seen = by_steps(plans, texts, first)
    buffers = plans.buffers[count]
    assert buffers.refused is None and buffers.plan is not None, buffers.refused
    want = [forward(model, text)[first + key : first + key + len(seen)] for key, text in enumerate(texts)]
    return max(far(rows[key], want[key][i]) for i, rows in enumerate(seen) for key in range(count))


@pytest.mark.quick(7)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_replayed_step_is_the_forward(name: str, count: int) -> None:
    """In float64, for texts of different lengths, over the borders of pages."""
    assert worst(name, count) < 1e-10


def generated(model: Any, requests: list[Request], **how: Any) -> list[list[int]]:
    """Return the tokens of requests from an engine of their own."""
    engine = Engine.of(model, 256, size=4, **how)
    numbers = [engine.submit(r) for r in requests]
    out: dict[int, list[int]] = {n: [] for n in numbers}
    for o in engine.outputs():
        assert o.error is None, o.error
        if o.token is not None:
            out[o.request].append(o.token.id)
    plans: Any = engine.run.plans  # type: ignore[attr-defined]
    if isinstance(plans, Graphs):
        assert all(b.refused is None for b in plans.buffers.values()), [b.refused for b in plans.buffers.values()]
    return [out[n] for n in numbers]


GREEDY = Sampling()


def three_requests(sampling: Sampling = GREEDY, new: int = 8) -> list[Request]:
    return [Request(tuple(ids(4 + 3 * n, seed=n).tolist()), new - n, sampling, stops=frozenset({7, 20 + n})) for n in range(3)]


@pytest.mark.quick(11)
@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3", "qwen2_moe"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.9, top_k=20, seed=4), Sampling(repetition=1.3)], ids=["greedy", "drawn", "repetition"]
)
def test_a_text_is_that_of_the_cpu(name: str, sampling: Sampling) -> None:
    """Alone and in a crowd that stops at different tokens, in bursts and in single steps."""
    model = tiny(CONFIGS[name])
    want = generated(model, three_requests(sampling))
    device = there(model)
    assert generated(device, three_requests(sampling)) == want
    with swapped(graphs, "STEPS", 1):
        assert generated(device, three_requests(sampling)[:1]) == want[:1]


def test_a_watch_of_a_replay_sees_a_forward() -> None:
    """Every tensor of a step, scores and pattern too, equals that of a step without a graph."""
    model = there(tiny(GPT2))
    texts, seen = [ids(12, seed=n) for n in range(2)], []
    for refused in (None, "a reason"):
        plans = Graphs(model, PagedCache(64, 4, device=DEVICE))
        with watch(model) as records:
            by_steps(plans, texts, 4)
            plans.buffers[2].refused = refused
            plans.step({0: 3, 1: 5})
        assert refused is not None or plans.buffers[2].recorder is not None, plans.buffers[2].refused
        seen.append({s.path: s.value.cpu().clone() for s in records if s.step == max(r.step for r in records)})
    assert seen[0].keys() == seen[1].keys() and len(seen[0]) > 30
    assert max(far(seen[0][path], seen[1][path]) for path in seen[0]) < 1e-10


def test_a_burst_after_a_watch_goes_on() -> None:
    """A watch records the step again, with other outputs: the next burst reads those."""
    model = tiny(GPT2)
    engine, request = Engine.of(there(model), 256, size=4, prefix_cache=False), three_requests()[2]
    want = generated(model, [request])[0]
    texts = []
    for watched in (False, True, False):
        with ExitStack() as stack:
            if watched:
                stack.enter_context(watch(engine.module))
            engine.submit(request)
            texts.append([o.token.id for o in engine.outputs() if o.token is not None])
    assert texts == [want] * 3


def test_what_a_graph_cannot_keep_is_refused() -> None:
    """A step that walks its texts, or reads a number on the host, is not recorded: the model's forward runs."""
    model, texts = tiny(LLAMA), [ids(12)]
    with swapped(GraphStep, "_rows", lambda self, allocator, pools, new: super(GraphStep, self)._append(allocator, pools, new)):
        plans = Graphs(there(model), PagedCache(64, 4, device=DEVICE))
        seen = by_steps(plans, texts, 5)
    assert plans.buffers[1].refused is not None
    want = forward(model, texts[0])[5:]
    assert max(far(rows[0], want[i]) for i, rows in enumerate(seen)) < 1e-10


def test_deterministic_mode_is_refused_in_one_line() -> None:
    """The bits of a row depend on torch's kernels there, which take other ones for other sizes."""
    with pytest.raises(UseError, match=r"deterministic mode does not hold here: .*(cuda|privateuseone)") as error:
        generated(there(tiny(LLAMA)), three_requests()[:1], deterministic=True)
    assert "\n" not in str(error.value)


def test_mutants() -> None:
    """Inputs that stay on the host, a length that a graph keeps, a burst that does not go on: each fails its law."""
    with swapped(graphs.GraphBuffers, "set", lambda self, *args: self.host.set(*args)):
        assert not worst("llama", 1) < 1e-10
    real = graphs.GraphBuffers.set

    def stale(self: Any, tokens: list[int], spans: Any, together: Any) -> None:
        real(self, tokens, [replace(s, before=5) for s in spans], together)

    with swapped(graphs.GraphBuffers, "set", stale):
        assert not worst("llama", 1) < 1e-10
    model = tiny(GPT2)
    want, device = generated(model, three_requests()[:1]), there(model)
    with swapped(graphs.GraphBuffers, "advance", lambda self: self.chosen.index_copy_(0, self.at, self.best[None])):
        assert generated(device, three_requests()[:1]) != want
