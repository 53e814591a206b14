"""Memory of tensors that have died serves others, and never two at once."""

import sys
import threading

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.native import ReusedMemory
from pellucid.ops.native.reused_memory import rounded
from pellucid.watching.watch import watch
from tiny import ids, swapped, tiny

attend_module = sys.modules["pellucid.ops.attend"]


def test_memory_is_given_again() -> None:
    memory = ReusedMemory()
    a = memory.empty((3, 5), torch.float32)
    view, address = a[1:].t(), a.data_ptr()
    del a
    b = memory.empty((4, 4), torch.float32)
    assert b.data_ptr() != address and len(memory.kept) == 2  # a view holds it
    del view
    c = memory.empty((16,), torch.float32)
    assert c.data_ptr() == address and len(memory.kept) == 2 and memory.holds(c.untyped_storage())
    assert not memory.holds(torch.empty(4).untyped_storage())


def test_memory_has_a_limit() -> None:
    memory = ReusedMemory(200)
    tensors = [memory.empty((16,), torch.float32) for _ in range(4)]
    assert [memory.holds(t.untyped_storage()) for t in tensors] == [True, True, True, False] and len(memory.kept) == 3
    addresses = {t.data_ptr() for t in tensors[:3]}
    del tensors
    assert {memory.empty((4, 4), torch.float32).data_ptr() for _ in range(5)} <= addresses
    assert memory.empty((0, 4), torch.float32).shape == (0, 4)
    for size in (1, 64, 65, 1000, 12_582_912, 12_582_913):
        assert size <= rounded(size) <= max(64, size + size / 8 + 64) and rounded(size) % 64 == 0


@pytest.mark.skipif(not native.available(), reason="no kernels here")
def test_tables_of_a_watch_are_in_memory_that_is_given_again() -> None:
    module, prompt = tiny("llama", torch.float32), ids(40)
    memory = ReusedMemory()
    with swapped(attend_module, "TABLES", memory):

        def tables() -> set[int]:
            with torch.no_grad(), watch(module, only="layers.*.attn.pattern") as seen:
                module(prompt[None])
            return {s.value.untyped_storage().data_ptr() for s in seen}

        first = tables()
        kept = set(memory.kept)
        assert len(first) == len(module.layers) and first <= kept
        assert tables() <= kept == set(memory.kept)


def lent_twice(memory: ReusedMemory) -> bool:
    """True if two tensors share memory while threads make and drop them; each tensor has a number of its own."""
    bad = list[int]()

    def work(number: int) -> None:
        own = list[tuple[int, Tensor]]()
        start.wait()
        for i in range(number, 1200, 4):
            own.append((i, memory.empty((7,), torch.float32).fill_(i)))
            if i % 3:
                mark, t = own.pop(0)
                if not bool((t == mark).all()):
                    bad.append(mark)

    start = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return bool(bad)


def test_threads_never_share_memory() -> None:
    assert not lent_twice(ReusedMemory())


def test_memory_that_is_lent_twice_is_seen() -> None:
    memory, real = ReusedMemory(), ReusedMemory.empty

    def empty(self: ReusedMemory, *how: object) -> Tensor:
        t = real(self, *how)
        self.free[64].append(t.data_ptr())
        return t

    with swapped(ReusedMemory, "empty", empty):
        assert lent_twice(memory)
