"""Steps with rows of prompts as plans: the tokens and the logits of the model's own forward, bit for bit, in the memory of a few layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from covering import COVER, config_of
from kinds import KINDS, WRITES
from pellucid.engine.chunk_plans import ChunkBuffers, ChunkPlans, chunkable
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from pellucid.ops.native import ReusedMemory
from pellucid.watching.watch import watch
from test_bursts import MIXED, Ran, ran, requests_of
from test_lengths import SCALINGS, built
from test_quant import pack
from tiny import LLAMA, ids, swapped, tiny

pytestmark = pytest.mark.skipif(not native.available(), reason="no kernels here")
RUN = ChunkPlans.run


@contextmanager
def counted(steps: list[int]) -> Iterator[None]:
    """Append the rows of each step that is a plan."""

    def run(self: ChunkPlans, tokens: Any, *how: Any) -> Tensor | None:
        out = RUN(self, tokens, *how)
        if out is not None:
            steps.append(len(tokens))
        return out

    with swapped(ChunkPlans, "run", run):
        yield


def module_by_module(module: Any, requests: list[Request], **how: Any) -> Ran:
    """Run requests without such plans, by the same kernels."""

    def run(self: ChunkPlans, *how: Any) -> None:
        return None

    with swapped(ChunkPlans, "run", run):
        return ran(module, requests, **how)


def holds(module: Any, requests: list[Request], **how: Any) -> tuple[bool, list[int]]:
    steps, how = list[int](), {"deterministic": True, "rows": 20} | how
    with counted(steps), torch.no_grad():
        planned = ran(module, requests, **how)
    with torch.no_grad():
        return planned.same(module_by_module(module, requests, **how)), steps


@pytest.mark.parametrize(("family", "quirk"), [(f, q) for f, q in COVER if KINDS[f].task in WRITES])
@pytest.mark.quick(15)
def test_a_plan_is_the_models_forward(family: str, quirk: str) -> None:
    """Five texts in chunks, beside texts that decode, over borders of pages: in every family whose rows run by the kernels."""
    if quirk not in KINDS[family].quirks:
        quirk = next(iter(KINDS[family].quirks))
    module = tiny(config_of(family, quirk), torch.float32, std=0.2)
    if not isinstance(module, Decoder) or not chunkable(module):
        pytest.skip("its rows of prompts need torch")
    same, steps = holds(module, requests_of(module, MIXED, 9), running=3)
    assert same and max(steps) > 16


@pytest.mark.skipif(not native.leads(torch.bfloat16), reason="torch multiplies bf16 faster here")
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_in_bfloat16(family: str) -> None:
    """Where the kernels multiply many rows, all engines have such plans."""
    module = tiny(family, torch.bfloat16, std=0.2)
    requests = [Request(tuple(ids(n, seed=n).tolist()), 9, sampling) for n, sampling in zip((30, 45, 20, 33), MIXED, strict=True)]
    same, steps = holds(module, requests, deterministic=False, rows=48)
    assert same and max(steps) == 48


@pytest.mark.skipif(not native.leads(torch.bfloat16), reason="torch multiplies bf16 faster here")
@pytest.mark.parametrize("packed", [None, "int8", "int4"])
def test_a_watched_step_has_the_bits_of_a_plan(packed: str | None) -> None:
    """Of few rows, of as many as blocks have one kernel for, and of more."""
    module, prompt = tiny(replace(LLAMA, width=64), torch.bfloat16, std=0.2), tuple(ids(90).tolist())
    module = module if packed is None else pack(module, packed)
    texts, watched = list[list[Tensor]](), list[int]()
    for on in (False, True):
        engine = Engine.of(module, 400, SchedulerLimits(128), 16)
        seen, forward = list[Tensor](), engine.run

        def run(chunks: Any, seen: list[Tensor] = seen, forward: Any = forward) -> Any:
            logits = forward(chunks)
            seen.extend(t.clone() for t in logits.values())
            return logits

        engine.run = run
        for first in (prompt[:3], prompt, prompt[5:45]):
            engine.submit(Request(first, 1))
            if on:
                with watch(module, only="layers.0.out") as own:
                    engine.step()
                watched.append(len(own))
            else:
                engine.step()
        texts.append(seen)
    assert watched == [1, 1, 1] and all(map(torch.equal, *texts))


@pytest.mark.parametrize("packed", ["int8", "int4"])
def test_weights_in_blocks(packed: str) -> None:
    module = pack(tiny(replace(LLAMA, width=64), torch.float32), packed)
    same, steps = holds(module, requests_of(module, MIXED, 9))
    assert same and steps


@pytest.mark.parametrize("how", [{"kv": "int8"}, {"tokens": 64}, {"tokens": 80, "size": 16}, {"prefix_cache": False}], ids=str)
def test_pages(how: dict[str, Any]) -> None:
    """Keys and values in int8, texts that are preempted, and rows that an earlier text has stored."""
    module = tiny("llama", torch.float32)
    same, steps = holds(module, requests_of(module, MIXED, 20) * 2, **how)
    assert same and steps


@pytest.mark.parametrize("scaling", SCALINGS)
def test_lengths_that_change_angles(scaling: str) -> None:
    same, steps = holds(built(scaling).float(), [Request(tuple(ids(n, seed=n).tolist()), 20) for n in (5, 12, 10)], size=16)
    assert same and steps


def test_no_logits_without_a_head() -> None:
    """A chunk that ends no prompt runs the calls before the head: the logits of an earlier step stay."""
    module, heads = tiny("llama", torch.float32), list[int | None]()
    replay = native.Plan.replay

    def replayed(self: native.Plan, count: int | None = None) -> None:
        heads.append(None if count is None else len(self.calls) - count)
        replay(self, count)

    with swapped(native.Plan, "replay", replayed):
        same, _ = holds(module, [Request(tuple(ids(50).tolist()), 2)] * 2, rows=16, prefix_cache=False, running=1)
    assert same and any(count is not None and count > 1 for count in heads)


def test_a_weight_that_is_replaced_and_a_hook() -> None:
    def text(planned: bool) -> list[int]:
        module, steps = tiny("llama", torch.float32), list[int]()
        engine = Engine.of(module, 400, SchedulerLimits(), 64, prefix_cache=False, deterministic=True)
        engine.run.chunk_plans.planned = planned  # type: ignore[attr-defined]
        out = list[int]()

        def write() -> None:
            engine.submit(Request((1, 2, 3), 1))
            with counted(steps):
                out.extend(o.token.id for o in engine.outputs() if o.token)

        for _ in range(3):
            write()
        module.head.weight = torch.nn.Parameter(module.head.weight.flip(0).contiguous(), requires_grad=False)
        write()
        assert len(steps) == 3 * planned
        hook = module.layers[0].register_forward_hook(lambda layer, x, y: y * 0)
        write()
        assert len(steps) == 3 * planned
        hook.remove()
        write()
        assert len(steps) == 4 * planned
        return out

    with torch.no_grad():
        assert text(True) == text(False) and len(set(text(True))) > 1


def test_two_plans_serve_any_number_of_rows() -> None:
    module, rows = tiny("llama", torch.float32), [3, 40, 17, 64, 9, 200, 33, 16, 129, 512, 1, 511]
    steps, out = list[int](), list[list[int]]()
    for planned in (True, False):
        engine = Engine.of(module, 600, SchedulerLimits(), 64, prefix_cache=False, deterministic=True)
        plans = engine.run.chunk_plans  # type: ignore[attr-defined]
        plans.planned = planned
        tokens = list[int]()
        with counted(steps), torch.no_grad():
            for n in rows:
                engine.submit(Request(tuple(ids(n, seed=n).tolist()), 1))
                tokens += [o.token.id for o in engine.outputs() if o.token]
        out.append(tokens)
        assert sorted(plans.buffers) == [(16, 16), (512, 16)] * planned
    assert steps == rows[1:] and out[0] == out[1]


def test_many_texts_decode_by_a_plan() -> None:
    """More texts than a decode step's plan has rows, each with a row; some end before others."""
    module = tiny("llama", torch.float32)
    requests = [Request(tuple(ids(3 + i % 7, seed=i).tolist()), 14 + i % 5, MIXED[i % 4]) for i in range(40)]
    same, steps = holds(module, requests, rows=64, running=40, tokens=2000, prefix_cache=False)
    assert same and {40} < {n for n in steps if native.ROWS < n <= 40}


def test_nothing_runs_while_a_plan_is_recorded() -> None:
    x, y = torch.ones(1, 5, 8), torch.zeros(1, 5, 8)
    with torch.no_grad(), native.record(dry=True) as recording, swapped(recording, "fresh", lambda shape, dtype: y):
        native.add(x, x)
    assert y.eq(0).all()
    recording.plan().replay()
    assert y.eq(2).all()


def test_a_call_of_other_rows_is_refused() -> None:
    x = torch.ones(1, 5, 8)
    with torch.no_grad(), native.record() as recording:
        native.add(x, x)
    plan = recording.plan()
    assert native.RowWords(plan, 5, slice(0, 1)).each.tolist() == [8]
    with pytest.raises(native.Unplannable, match="add counts 40 where a step has rows: 16"):
        native.RowWords(plan, 16, slice(0, 1))
    with swapped(plan.calls[0].op, "fields", ("x", "y", "z", "count")), pytest.raises(native.Unplannable, match="add counts 0"):
        native.RowWords(plan, 5, slice(0, 1))


# Memory.


def plan_bytes(layers: int) -> int:
    """Return the bytes of a plan's tensors at this number of layers."""
    module = tiny(replace(LLAMA, layers=LLAMA.layers[:1] * layers, width=64), torch.float32)
    engine = Engine.of(module, 400, SchedulerLimits(128), 64, prefix_cache=False, deterministic=True)
    with torch.no_grad():
        for n in (3, 100):
            engine.submit(Request(tuple(ids(n).tolist()), 1))
            list(engine.outputs())
    return sum(block.nbytes for block in engine.run.chunk_plans.memory.kept.values())  # type: ignore[attr-defined]


def test_a_plan_holds_a_few_layers() -> None:
    """Of each further layer only its keys and values while it is recorded."""
    few, many = plan_bytes(2), plan_bytes(12)
    assert many < 2 * few


# Mutants.

FILL, EMPTY, SET = ChunkBuffers.fill, ReusedMemory.empty, native.RowWords.set


def filled(change: Any) -> Any:
    def fill(self: ChunkBuffers, *given: Any) -> None:
        FILL(self, *given)
        change(self, *given)

    return ChunkBuffers, "fill", fill


def careless(self: ReusedMemory, *given: Any) -> Tensor:
    """Give the memory again at once."""
    t = EMPTY(self, *given)
    for size, block in [(block.nbytes, block) for block in self.kept.values()]:
        if block.data_ptr() == t.data_ptr():
            self.free[size].append(block.data_ptr())
    return t


def one_text(self: ChunkBuffers, tokens: Any, *given: Any) -> None:
    self.runs.numpy()[:3] = [1, 0, len(tokens)]


MUTANTS = {
    "a row less": (native.RowWords, "set", lambda self, rows: SET(self, rows - 1)),
    "all rows of one text": filled(one_text),
    "the first row's logits": filled(lambda self, *given: self.wanted.zero_()),
    "no page but the first": filled(lambda self, *given: [np.copyto(t.numpy()[:, 1:], 0) for t in self.tables.values()]),
    "memory that is still held": (ReusedMemory, "empty", careless),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_seen(mutant: str) -> None:
    module = tiny("llama", torch.float32, std=0.2)
    requests = requests_of(module, MIXED, 9)
    with swapped(*MUTANTS[mutant]):
        try:
            same, _ = holds(module, requests * 2, running=3, rows=20, prefix_cache=False)
        except (AssertionError, IndexError, ValueError):
            same = False
    assert not same
