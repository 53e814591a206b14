"""Memory for weights and caches in pages of 2 MiB if the system has them, which saves most address translations; and a heap that the
allocator does not return to the system, to be cleared, at every layer.

A processor caches the addresses of some 1,500 pages: 6 MB in pages of 4 KiB. A decode step reads every weight once: a Cascade Lake
reads 22 GB/s of them in small pages and 27 in huge ones. A KV cache is read in short pieces: sixteen texts of 1,000 tokens at
Qwen2.5-0.5B's shape took 55 ms a step in small pages where huge ones take 35, on a Sapphire Rapids. There a product that writes 512 rows of
4,864 numbers went from 1,210 to 1,710 GFLOP/s, since each row of it lies in pages of its own.

    a block     | q | k | v | gate      | up        | ...    matrices stand one after another; a large one has an arena of its own
"""

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

PAGE = 2 << 20  # bytes
ARENA = 16 * PAGE
LEAST = 64 << 10  # bytes of a tensor that is worth it
LINE = 64  # bytes of a line of the processor's cache
# glibc returns free memory at the heap's end beyond twice the largest piece ever freed by itself, 32 MiB at most: this line frees such
# a piece. Without it a prefill of 512 tokens of Qwen2.5-0.5B faults 150,000 times, a tenth of its time.
torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)

ADVICE: int = getattr(mmap, "MADV_HUGEPAGE", 0)  # Linux has it


class Arena:
    """Private memory that begins at a huge page, returned to the system with the last tensor in it."""

    def __init__(self, size: int) -> None:
        mapped = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a system built without huge pages: the memory is as good, in small ones
            mapped.madvise(ADVICE)
        self.memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self.used = -self.memory.data_ptr() % PAGE
        self.end = self.used + size

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the next tensor. Its storage is its own, and ends with it."""
        count, at = prod(shape), self.used
        self.used += -(-count * dtype.itemsize // LINE) * LINE
        return torch.frombuffer(self.memory.numpy(), dtype=dtype, count=count, offset=at).view(tuple(shape))


lock = threading.Lock()
last: list[Arena] = []  # the arena that is not full, if there is one


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Allocate like `torch.empty`, in huge pages if the tensor is large and on a CPU. For memory that is read at every step."""
    large = fresh(shape, dtype, device)
    return torch.empty(tuple(shape), dtype=dtype, device=device) if large is None else large


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Allocate like `torch.zeros`, where `empty` would. A huge page takes memory when something is written there."""
    large = fresh(shape, dtype, device)
    return torch.zeros(tuple(shape), dtype=dtype, device=device) if large is None else large


def fresh(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """Return a tensor of zeros in huge pages that are not written yet. None if it is small, not on a CPU, or there are none."""
    size = prod(shape) * dtype.itemsize
    if not ADVICE or size < LEAST or torch.device(device).type != "cpu":
        return None
    if size >= ARENA:
        return Arena(-(-size // PAGE) * PAGE).take(shape, dtype)
    with lock:
        if not last or last[0].end - last[0].used < size:
            last[:] = [Arena(ARENA)]
        return last[0].take(shape, dtype)
