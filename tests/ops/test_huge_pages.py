"""Memory for weights and caches behaves as torch's own, and is faster if the system has huge pages."""

import gc
import platform
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid import huge_pages
from pellucid.batch.plain_rows import PLAIN
from pellucid.huge_pages import ARENA, LINE, PAGE, empty, zeros
from pellucid.ops.blocks import Blocks
from pellucid.ops.held import INT8
from pellucid.ops.native import ReusedMemory
from resident import resident

SHAPES = ((3,), (64, 1024), (1000, 100), (4097, 33), (ARENA // 4, 1), (5, ARENA // 8), (0, 7), (40000,))
linux = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")


@pytest.fixture(autouse=True)
def _own_blocks(monkeypatch):
    monkeypatch.setattr(huge_pages, "last", [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float64])
def test_tensors_are_whole_and_apart(dtype):
    made = [empty(shape, dtype) for shape in SHAPES]
    for i, t in enumerate(made):
        assert t.dtype is dtype and t.shape == SHAPES[i] and t.is_contiguous() and not t.requires_grad
        assert t.untyped_storage().nbytes() == t.nbytes, "as long as itself, or what is saved and counted would be more"
        t.view(torch.uint8).fill_(i % 2 if dtype is torch.bool else i + 1) if t.numel() else None
    for i, t in enumerate(made):
        assert (t.view(torch.uint8) == (i % 2 if dtype is torch.bool else i + 1)).all(), "nothing else wrote here"


@linux
def test_matrices_stand_side_by_side_and_a_large_one_alone():
    a, b = empty((300, 256), torch.float32), empty((256, 300), torch.float32)
    assert b.data_ptr() - a.data_ptr() == a.nbytes and a.data_ptr() % PAGE == 0 and b.data_ptr() % LINE == 0
    large = empty((ARENA,), torch.uint8)
    assert large.data_ptr() % PAGE == 0
    more = [empty((PAGE,), torch.uint8) for _ in range(ARENA // PAGE)]  # does not fit behind the two
    assert len({t.data_ptr() for t in more}) == len(more) and len(huge_pages.last) == 1


def test_zeros_are_zeros():
    for shape in SHAPES:
        empty(shape, torch.float32).fill_(1.0)
        assert not zeros(shape, torch.float32).count_nonzero(), shape
    assert zeros((ARENA,), torch.int8, "meta").is_meta


@linux
def test_a_cache_stands_where_weights_do():
    like = torch.ones(1, 3, 2, 64)
    for pool in (*PLAIN.pools((like, like), 16384), *INT8.pools((like, like), 16384)):
        assert pool.data_ptr() - huge_pages.last[0].memory.data_ptr() in range(ARENA + PAGE) and not pool.count_nonzero()


@linux
def test_a_plans_tensors_stand_where_weights_do():
    t = ReusedMemory().empty((512, 4864), torch.bfloat16)
    assert t.data_ptr() - huge_pages.last[0].memory.data_ptr() in range(ARENA + PAGE)


@linux
def test_memory_goes_back_with_the_last_tensor():
    a, b = empty((300, 256), torch.float32), empty((256, 300), torch.float32)
    huge_pages.last.clear()
    del a
    gc.collect()
    b.fill_(1.0)
    assert b.sum() == b.numel(), "its neighbour is gone, its memory is not"
    before = resident()
    large = empty((8 * ARENA,), torch.uint8).fill_(1)
    assert resident() - before > 7 * ARENA
    del large
    gc.collect()
    assert resident() - before < ARENA


@linux
def test_pages_are_huge_where_the_system_has_them():
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no huge pages")
    before = huge()
    t = empty((2 * ARENA,), torch.uint8).fill_(1)
    if huge() == before:
        pytest.skip("no huge page is free")
    assert huge() - before >= t.nbytes // 2


def huge() -> int:
    """Return this process's bytes in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))


def test_many_threads_share_a_block():
    made: list[torch.Tensor] = []

    def ask(mark: int) -> None:
        for _ in range(20):
            made.append(empty((LINE << 10,), torch.uint8).fill_(mark))

    threads = [threading.Thread(target=ask, args=(i + 1,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in made)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(len(t.unique()) == 1 for t in made)


@pytest.mark.parametrize("missing", ["advice", "refused"])
def test_a_system_without_huge_pages_gives_small_ones(missing, monkeypatch):
    if missing == "advice":
        monkeypatch.setattr(huge_pages, "ADVICE", 0)
    else:
        monkeypatch.setattr(huge_pages, "ADVICE", 10_000)  # no advice that a kernel knows
    t = empty((300, 256), torch.float32).fill_(2.0)
    assert t.sum() == 2 * t.numel() and t.untyped_storage().nbytes() == t.nbytes


@linux
@pytest.mark.parametrize("quant", [None, "int8"])
def test_weights_that_are_loaded_lie_there(quant, monkeypatch):
    blocks: list[huge_pages.Arena] = []
    made = huge_pages.Arena.__init__

    def noted(self, size):
        made(self, size)
        blocks.append(self)

    monkeypatch.setattr(huge_pages, "LEAST", 1 << 10)
    monkeypatch.setattr(huge_pages.Arena, "__init__", noted)
    model = pellucid.load("pellucid/capitals", quant=quant)
    spans = [(b.memory.data_ptr(), b.memory.data_ptr() + b.memory.nbytes) for b in blocks]
    large = [t for p in model.module.parameters() for t in ((p.codes, p.scales) if isinstance(p, Blocks) else (p,)) if t.nbytes >= 1 << 10]
    assert large and all(any(low <= t.data_ptr() < high for low, high in spans) for t in large)


COMING_AND_GOING = """
import ctypes, resource, sys, torch
if sys.argv[1:]: import pellucid.ops
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
heap = ctypes.CDLL(None)
heap.mallinfo.restype = Info
def layer(): return [torch.empty(5 << 20, dtype=torch.uint8).fill_(1) for _ in range(4)]
before = heap.mallinfo().hblks
large = torch.empty(31 << 20, dtype=torch.uint8)
print(heap.mallinfo().hblks - before)
del large
for _ in range(3): layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a habit of glibc's")
def test_what_is_freed_is_not_handed_back_at_once():
    """Freed activations stay in the heap, so that a second prompt causes few page faults (before: 102,400).

    Memory that is mapped by itself returns to the system when it is freed: torch's largest blocks are, unless Pellucid is imported.
    """

    def mapped_and_faults(*arguments: str) -> tuple[int, int]:
        run = subprocess.run([sys.executable, "-c", COMING_AND_GOING, *arguments], capture_output=True, text=True, check=True)
        mapped, faults = map(int, run.stdout.split())
        return mapped, faults

    mapped, faults = mapped_and_faults("with us")
    assert mapped == 0 and faults < 2_000
    assert mapped_and_faults()[0] == 1
