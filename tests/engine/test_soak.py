"""The quick form of the soak, and the faults that it must find."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from campaigns.soak import AT_ONCE, KINDS, campaign
from covering import FULL
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.page_allocator import PageAllocator
from pellucid.engine import prefix_cache
from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Request, Sequence
from tiny import swapped

QUICK = 70


def sound(report: Mapping[str, Any]) -> bool:
    return not report["faults"] and not any(report["left"].values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick(4)
def test_nothing_is_left_and_every_text_is_its_own(kind: str) -> None:
    report = campaign(kind, QUICK, 2)
    assert sound(report), report
    assert min(report[name] for name in ("requests", "finished", "cancelled", "refused", "tokens_from_cache")) > 0
    assert report["requests"] + report["refused"] == QUICK > AT_ONCE


submit, receive, close, call = Engine.submit, Engine.receive, Memory.close, Forward.__call__


def queued(self: Engine, request: Request) -> int:
    """Give a refused request a number."""
    try:
        return submit(self, request)
    except BaseException:
        self.count += 1
        raise


def forgotten(self: Engine) -> None:
    """End a cancelled text without releasing its pages."""
    with swapped(Memory, "close", lambda memory, s: None):
        receive(self)


def opened(self: Forward, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
    os.open(os.devnull, os.O_RDONLY)
    return call(self, chunks)


KEPT: list[Sequence] = []


def remembered(self: Memory, s: Sequence) -> None:
    KEPT.append(s)
    close(self, s)


def uncopied(self: PagedCache, allocator: PageAllocator, request: object, buffers: list[int]) -> None:
    for i in buffers:
        allocator.put(request, i, allocator.pop_free())


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a refused request counts": (Engine, "submit", queued),
    "pages of the cancelled": (Engine, "receive", forgotten),
    "a file a step": (Forward, "__call__", opened),
    "texts that have ended": (Memory, "close", remembered),
    "beginnings by their length": (prefix_cache, "edge", len),
    "a copy without its rows": (PagedCache, "copy", uncopied),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(4)
def test_faults_are_found(mutant: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with swapped(*MUTANTS[mutant]):
        assert not sound(campaign("llama", QUICK, 2))
    KEPT.clear()
    for fd in set(os.listdir("/proc/self/fd")) - before:
        if os.path.exists(f"/proc/self/fd/{fd}"):
            os.close(int(fd))


def test_it_is_the_same_every_time() -> None:
    size = (30, 3) if FULL else (20, 2)
    assert campaign("llama", *size) == campaign("llama", *size)
