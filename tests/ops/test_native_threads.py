"""The kernels' own threads (threads.h), used without OpenMP: on any number of them, and from two callers, the same bits."""

import os
import sys
import threading
from pathlib import Path

import pytest
import torch

from pellucid.ops import native
from pellucid.ops.native import library
from test_native_kernels import compiled, needs_compiler, sources
from tiny import swapped

__all__ = ["sources"]


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_own_threads_give_the_same_bits(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = compiled(sources, "-fno-openmp", "-shared", "-o", str(sources / "own.so"))
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(library, "digest", lambda: "x")
    with torch.no_grad(), swapped(library, "lib", library.Library(sources / "own.so")):
        x, w = torch.randn(3, 257), torch.randn(3000, 257)
        monkeypatch.setattr(library, "threads", lambda: 1)
        before, want = len(os.listdir("/proc/self/task")), native.linear(x, w, None)
        assert len(os.listdir("/proc/self/task")) == before
        monkeypatch.setattr(library, "threads", lambda: 3)
        for _ in range(50):
            assert torch.equal(native.linear(x, w, None), want)
        assert len(os.listdir("/proc/self/task")) == before + 2
        right = list[bool]()
        callers = [threading.Thread(target=lambda: right.extend(torch.equal(product(x, w), want) for _ in range(50))) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        assert right == [True] * 100


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return native.linear(x, w, None)
