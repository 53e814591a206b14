"""Memory that is given again once the tensors in it have died: what is fresh from the system costs as much as writing it twice.

a = memory.empty((3, 5), torch.float32)     64 bytes of its own
view = a[1:]
del a                                       the view holds them still
del view
b = memory.empty((4, 4), torch.float32)     the same 64 bytes
"""

import ctypes
import math
import weakref
from typing import Any

import torch
from torch import Tensor

from pellucid import huge_pages


class ReusedMemory:
    """Memory for tensors on a CPU, large ones in huge pages, a block for each; a free block serves the next tensor of its size, which is
    rounded up by an eighth at most.

    limit: the most bytes of it; a tensor beyond them gets memory of torch's. None: any number.
    kept: the blocks, by address.  free: addresses of those that no tensor holds, by their size in bytes.
    last: by address, what is alive as long as the last tensor of the block is.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.kept: dict[int, Tensor] = {}
        self.free: dict[int, list[int]] = {}
        self.last: dict[int, weakref.finalize[Any, Any]] = {}
        self.size = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate a tensor."""
        count = math.prod(shape)
        size = rounded(count * dtype.itemsize)
        free = self.free.setdefault(size, [])
        try:
            address = free.pop()
        except IndexError:
            if not count or (self.limit is not None and self.size + size > self.limit):
                return torch.empty(shape, dtype=dtype, device="cpu")
            block = huge_pages.empty((size,), torch.uint8)
            address = block.data_ptr()
            self.kept[address], self.size = block, self.size + size
        lent = (ctypes.c_char * size).from_address(address)  # the tensor's storage holds it, and nothing else does
        self.last[address] = weakref.finalize(lent, free.append, address)
        self.last[address].atexit = False
        return torch.frombuffer(lent, dtype=dtype, count=count).view(shape)

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """True if a storage lies in this memory."""
        return storage.data_ptr() in self.kept


def rounded(size: int) -> int:
    """Round a size up to a multiple of an eighth of the power of two below it, and of a cache line."""
    unit = max(64, 1 << max(0, size.bit_length() - 4))
    return -(-size // unit) * unit
