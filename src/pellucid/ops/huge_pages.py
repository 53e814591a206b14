"""Memory for weights in pages of 2 MiB where the system has them, so that reading a weight seldom asks where it lies; and a heap that
is not handed back to the system, and cleared by it, at every layer.

A processor keeps the addresses of some 1,500 pages at hand. Of 4 KiB each these are 6 MB, and a decode step reads every weight once:
on a Cascade Lake it reads 22 GB/s of them in small pages and 27 in huge ones.

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
# glibc hands back what is free at the heap's end, beyond twice the largest piece that was ever freed by itself: 32 MiB at most, and
# this is one. Reading 512 tokens of Qwen2.5-0.5B otherwise faults 150,000 times, a tenth of its time.
torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)

ADVICE: int = getattr(mmap, "MADV_HUGEPAGE", 0)  # Linux has it


class Arena:
    """Fresh private memory that begins at a huge page. It goes back to the system with the last tensor in it."""

    def __init__(self, size: int) -> None:
        mapped = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a system built without huge pages: the memory is as good, in small ones
            mapped.madvise(ADVICE)
        self.memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self.used = -self.memory.data_ptr() % PAGE
        self.end = self.used + size

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next tensor; its storage is its own, and no longer than itself."""
        count, at = prod(shape), self.used
        self.used += -(-count * dtype.itemsize // LINE) * LINE
        return torch.frombuffer(self.memory.numpy(), dtype=dtype, count=count, offset=at).view(tuple(shape))


lock = threading.Lock()
last: list[Arena] = []  # the arena that has room for more, if any


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """`torch.empty`, for what is read over and over."""
    size = prod(shape) * dtype.itemsize
    if not ADVICE or size < LEAST or torch.device(device).type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    if size >= ARENA:
        return Arena(-(-size // PAGE) * PAGE).take(shape, dtype)
    with lock:
        if not last or last[0].end - last[0].used < size:
            last[:] = [Arena(ARENA)]
        return last[0].take(shape, dtype)
