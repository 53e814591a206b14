"""The engine's memory stays flat over any number of requests, and a text's bytes are those that are counted."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from covering import FULL
from pellucid import config as c
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.page_allocator import PageAllocator
from pellucid.counting import Setting, counted
from pellucid.engine.engine import Engine
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from resident import resident
from tiny import DEEPSEEK_V3, GPT2, LLAMA, MLP, D, V, ids, swapped, tiny

REQUESTS, RUNNING = 1000 if FULL else 600, 16
PYTHON, RESIDENT = 40 * REQUESTS, 4 << 20  # bytes by which what is held may grow: 40 of Python's own a request


def requests(count: int) -> list[Request]:
    return [Request(tuple(ids(2 + i % 5, seed=i).tolist()), 2 + i % 3) for i in range(count)]


def serve(engine: Engine, requests: list[Request]) -> None:
    while requests or not engine.idle:
        while requests and engine.waiting < RUNNING:
            engine.submit(requests.pop())
        engine.step()


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


def growth(cached: bool) -> dict[str, int]:
    """Return the growth over REQUESTS requests: tensors, bytes of Python's, resident bytes."""
    engine = Engine.of(tiny("llama", torch.float32), 400, SchedulerLimits(64, RUNNING), 4, cached)
    tracemalloc.start()
    try:
        for n in range(1, RUNNING + 1):  # every plan is recorded, and the cache is full
            serve(engine, requests(n))
        serve(engine, requests(100))
        before = tensors(), tracemalloc.get_traced_memory()[0], resident()
        serve(engine, requests(REQUESTS))
        after = tensors(), tracemalloc.get_traced_memory()[0], resident()
    finally:
        tracemalloc.stop()
    return {name: y - x for name, x, y in zip(("tensors", "python", "resident"), before, after, strict=True)}


def flat(leak: dict[str, int]) -> bool:
    return leak["tensors"] <= 0 and leak["python"] < PYTHON and leak["resident"] < RESIDENT


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.quick(4)
def test_many_requests_leave_nothing(cached: bool) -> None:
    leak = growth(cached)
    assert flat(leak), leak


KEPT: list[Any] = []
close = Memory.close


def keeps(what: Callable[[], object]) -> Callable[[Memory, Sequence], None]:
    def closed(self: Memory, s: Sequence) -> None:
        KEPT.append(what())
        close(self, s)

    return closed


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        (lambda: torch.zeros(V), {"tensors", "python"}),
        (lambda: torch.zeros(1 << 14).untyped_storage(), {"python", "resident"}),
    ],
)
@pytest.mark.quick(2)
def test_a_leak_is_seen(what: Callable[[], object], seen: set[str]) -> None:
    """Seen are a kept row of logits per request, and a kept block of memory without its tensor."""
    try:
        with swapped(Memory, "close", keeps(what)):
            leak = growth(False)
    finally:
        KEPT.clear()
    over = {name for name, most in (("tensors", 0), ("python", PYTHON), ("resident", RESIDENT)) if leak[name] > most}
    assert over == seen, leak


# What a text holds, beside what is counted.


def windowed(window: int) -> c.Config:
    """Return a config with one layer of `window` positions and one without a window."""
    near = c.Layer(c.Attention(4, 2, 8, c.Rope(8), window=window), MLP)
    return c.Config(V, D, (near, c.Layer(c.Attention(4, 2, 8, c.Rope(8)), MLP)))


CONFIGS = {"gpt2": GPT2, "llama": LLAMA, "windows": windowed(5), "deepseek_v3": DEEPSEEK_V3}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def measured(cfg: c.Config, dtype: str, tokens: int, size: int, kv: str | None = None) -> int:
    """Return the bytes of a text's pages during the step that stores its last token. kv: see Engine.of."""
    engine = Engine.of(tiny(cfg, DTYPES[dtype]), 200, SchedulerLimits(7), size, prefix_cache=False, kv=kv)
    inner, pages, bytes_by_length = engine.run, engine.storage.pages, dict[int, int]()  # type: ignore[attr-defined]

    def recorded(chunks: Any) -> Any:
        for s, rows in chunks.items():
            bytes_by_length[s.stored + rows] = pages.bytes_held(s.key) if pages.pools else 0
        return inner(chunks)

    engine.run = recorded
    engine.submit(Request(tuple(ids(tokens - 2).tolist()), 3))
    assert [out.error for out in engine.outputs()] == [None] * 3
    return bytes_by_length[tokens]


def bill(cfg: c.Config, dtype: str, tokens: int, kv: str | None = None) -> Any:
    return counted(cfg, "tiny", "tiny", Setting(tokens, 1, None, dtype, dtype, dtype, kv=kv))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "windows"])
@pytest.mark.quick(5)
def test_bytes_in_int8_are_those_counted(name: str, dtype: str) -> None:
    """A head's row of 8 numbers takes 8 bytes and its scale; a bill without the scales, or of the dtype, is another."""
    cfg = CONFIGS[name]
    for tokens in (3, 12, 40):
        in_int8 = measured(cfg, dtype, tokens, 1, "int8")
        assert in_int8 == int(bill(cfg, dtype, tokens, "int8")["cache.bytes"])
        without_scales = counted(cfg, "tiny", "tiny", Setting(tokens, 1, None, dtype, "int8", dtype))
        assert int(without_scales["cache.bytes"]) < in_int8 < int(bill(cfg, dtype, tokens)["cache.bytes"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.quick(4)
def test_bytes_of_the_cache_are_those_counted(name: str, dtype: str) -> None:
    """With pages of one row the bytes are equal; larger pages add at most the unused rows of the last, and of a window's first."""
    cfg = CONFIGS[name]
    for tokens in (3, 12, 40):
        counted = bill(cfg, dtype, tokens)
        assert measured(cfg, dtype, tokens, 1) == int(counted["cache.bytes"])
        measured_bytes = measured(cfg, dtype, tokens, 8)
        assert int(counted["cache.bytes"]) <= measured_bytes <= int(counted["cache.bytes"]) + 2 * 8 * int(counted["cache.bytes_per_token"])
        if name != "windows":
            assert measured_bytes == -(-tokens // 8) * 8 * int(counted["cache.bytes_per_token"])


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "value"),
    [
        ("windows", PageAllocator, "free_outgrown", lambda self, request, length: None),
        ("llama", PagedCache, "bytes_held", lambda self, r: sum(len(h) for h in self.allocators[None].allocated.values())),
        ("deepseek_v3", PagedCache, "of", lambda self, part: PageAllocator(80, 1, None, 80)),
    ],
)
def test_other_bytes_are_seen(name: str, owner: Any, attribute: str, value: Any) -> None:
    with swapped(owner, attribute, value):
        try:
            measured_bytes = measured(CONFIGS[name], "float32", 12, 1)
        except KeyError:
            return
    assert measured_bytes != int(bill(CONFIGS[name], "float32", 12)["cache.bytes"])
