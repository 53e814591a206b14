"""One budget for all memory that outlives a request: the values of runs, the closures of their terms and tables, values computed again.

    run a     values 130 MB, held by closures 63 MB            the least recently used goes first, a whole run
    run a     pattern of layer 2, computed again 285 MB        or one value, which is computed again on request
    run b     ...

Tensors are counted in records, containers and closures, and each block of memory once, however many share it.
"""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.api.model import Model
from pellucid.checkpoint.disk import free_memory
from pellucid.errors import RequestError
from pellucid.ops.blocks import Blocks
from pellucid.runs.limits import Limits
from pellucid.watching.records import Seen

TABLES = 5  # times its own bytes that a table of scores takes while it is computed: scores, masked, softmax, a copy for the product
TENSORS = 3  # times its largest tensor that a forward takes
Key = tuple[str, int | None]  # a run; or one of its values, by its number
Sizes = Mapping[int, int]  # bytes of blocks of memory, by address
PLAIN = frozenset((str, bytes, int, float, bool, type(None), slice, torch.dtype, torch.device, torch.Size))  # hold nothing
APART = (type, ModuleType, nn.Module, nn.Parameter, Model)  # hold no tensor but a model's weights


def held_by(roots: Iterable[object], apart: Container[int] = ()) -> dict[int, int]:
    """Return the bytes, by address, of each storage of a tensor that can be reached from `roots`. apart: addresses not counted."""
    sizes, met, left = dict[int, int](), set[int](), list[Any](roots)
    while left:
        x = left.pop()
        kind = type(x)
        if kind in PLAIN or id(x) in met:
            continue
        met.add(id(x))
        if kind is Seen:
            left += (x.value, x.rows, x.grad, x.terms, x.later)
        elif kind is FunctionType:  # not what its module holds
            left += [*(x.__closure__ or ()), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        elif isinstance(x, Blocks):
            left += (x.codes, x.scales)
        elif isinstance(x, APART):
            continue
        elif isinstance(x, Tensor):
            storage = x.untyped_storage()
            if not x.is_meta and (place := storage.data_ptr()) not in apart:
                sizes[place] = storage.nbytes()
        else:
            left += gc.get_referents(x)
    return sizes


def weights_of(module: nn.Module) -> frozenset[int]:
    """Return the addresses of a model's parameters and buffers, which the registry holds."""
    tensors = (*module.parameters(), *module.buffers())
    parts = (part for t in tensors for part in ((t.codes, t.scales) if isinstance(t, Blocks) else (t,)))
    return frozenset(t.untyped_storage().data_ptr() for t in parts)


def largest(module: nn.Module, tokens: int) -> int:
    """Estimate the bytes of a forward's largest tensor: the logits of every row, or the widest activation of a layer."""
    widest = max((w for w in module.parameters() if w.ndim > 1), key=lambda w: w.shape[-2])
    return tokens * int(widest.shape[-2]) * widest.dtype.itemsize


def require(size: int, limits: Limits) -> None:
    """Raise a RequestError if computing `size` bytes exceeds the limit of work, or the free memory."""
    if size > limits.work:
        raise RequestError("server.work", 413, "prompt", size=size, limit=limits.work)
    if size > limits.value and (free := free_memory()) is not None and size > free:  # reading /proc for every small run costs too much
        raise RequestError("server.memory", 503, "prompt", size=size, free=free)


class Budget:
    """The memory held between requests, by key, the least recently used first. limit: bytes of all entries."""

    def __init__(self, limit: int) -> None:
        self.limit, self.lock = limit, threading.RLock()
        self.entries: OrderedDict[Key, tuple[Sizes, Callable[[], object]]] = OrderedDict()
        self.holders: dict[int, int] = {}  # entries by address
        self.total = 0

    def put(self, key: Key, sizes: Sizes, drop: Callable[[], object]) -> None:
        """Add an entry that holds `sizes`, and drop others beyond the limit, in the end the entry itself unless it is a run.

        drop: frees the entry's memory. A value whose run has been dropped is dropped at once.
        """
        with self.lock:
            if key[1] is not None and (key[0], None) not in self.entries:  # its run has gone meanwhile
                drop()
                return
            self.remove(key)
            self.entries[key] = sizes, drop
            for place, size in sizes.items():
                self.holders[place] = self.holders.get(place, 0) + 1
                self.total += size if self.holders[place] == 1 else 0
            self.use(key)
            self.shrink(self.limit, key)

    def use(self, key: Key) -> None:
        """Mark an entry and its run as the most recently used."""
        with self.lock:
            for one in ((key[0], None), key):
                if one in self.entries:
                    self.entries.move_to_end(one)

    def shrink(self, most: int, key: Key | None = None) -> None:
        """Drop the least recently used entries until all hold at most `most` bytes.

        key: the entry in use: a value is dropped last, and its run never.
        """
        with self.lock:
            run = (key[0], None) if key is not None else None
            for one in [k for k in self.entries if k not in (key, run)]:
                if self.total <= most:
                    return
                self.drop(one)
            if key is not None and key != run and self.total > most:
                self.drop(key)

    def drop(self, key: Key) -> None:
        """Drop an entry; with a run its values."""
        with self.lock:
            for one in [k for k in self.entries if k == key or (key[1] is None and k[0] == key[0])]:
                drop = self.entries[one][1]
                self.remove(one)
                drop()

    def remove(self, key: Key) -> None:
        """Remove an entry from the count."""
        sizes, _ = self.entries.pop(key, ({}, None))
        for place, size in sizes.items():
            self.holders[place] -= 1
            if not self.holders[place]:
                del self.holders[place]
                self.total -= size
