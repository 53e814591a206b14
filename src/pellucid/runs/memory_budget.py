"""One budget over everything that outlives a request: the values of runs, what their terms and listed tables hold, values computed again.

    run a     values 130 MB, held by closures 63 MB            the least recently used goes first, a whole run
    run a     pattern of layer 2, computed again 285 MB        or one value, which is computed again when it is asked for
    run b     ...

A tensor is found wherever it is held, in a record, a container or a closure, and each block of memory is counted once, however shared.
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
from pellucid.watching.watch import Seen

TABLES = 5  # times its own bytes that a table of scores takes while it is computed: scores, masked, softmax, a copy for the product
TENSORS = 3  # times its largest tensor that a forward takes
Key = tuple[str, int | None]  # a run; or one of its values, by its number
LoadedModel = Mapping[int, int]  # bytes by address
PLAIN = frozenset((str, bytes, int, float, bool, type(None), slice, torch.dtype, torch.device, torch.Size))  # hold nothing
APART = (type, ModuleType, nn.Module, nn.Parameter, Model)  # hold no tensor but a model's weights


def held_by(roots: Iterable[object], apart: Container[int] = ()) -> dict[int, int]:
    """Bytes of each block of memory, by address, in which a tensor lies that can be reached from `roots`. apart: addresses not counted."""
    found, met, left = dict[int, int](), set[int](), list[Any](roots)
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
                found[place] = storage.nbytes()
        else:
            left += gc.get_referents(x)
    return found


def weights_of(module: nn.Module) -> frozenset[int]:
    """The addresses of a model's parameters and buffers, which are the registry's."""
    tensors = (*module.parameters(), *module.buffers())
    parts = (part for t in tensors for part in ((t.codes, t.scales) if isinstance(t, Blocks) else (t,)))
    return frozenset(t.untyped_storage().data_ptr() for t in parts)


def largest(module: nn.Module, tokens: int) -> int:
    """About how many bytes the largest tensor of a forward takes: the logits of every row, or what is widest in a layer."""
    widest = max((w for w in module.parameters() if w.ndim > 1), key=lambda w: w.shape[-2])
    return tokens * int(widest.shape[-2]) * widest.dtype.itemsize


def require(size: int, limits: Limits) -> None:
    """Refuse what would take more memory while it is computed than is allowed, or than there is."""
    if size > limits.work:
        raise RequestError("server.work", 413, "prompt", size=size, limit=limits.work)
    if size > limits.value and (free := free_memory()) is not None and size > free:  # the system is not asked for every little run
        raise RequestError("server.memory", 503, "prompt", size=size, free=free)


class Budget:
    """What is held between requests, by its key, the least recently used first. limit: bytes of all of it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.lock = limit, threading.RLock()
        self.entries: OrderedDict[Key, tuple[LoadedModel, Callable[[], object]]] = OrderedDict()
        self.holders: dict[int, int] = {}  # entries by address
        self.total = 0

    def put(self, key: Key, loaded: LoadedModel, drop: Callable[[], object]) -> None:
        """Count what a new entry holds; others go, and if that is not enough itself, unless it is a run. drop: lets it go."""
        with self.lock:
            if key[1] is not None and (key[0], None) not in self.entries:  # its run has gone meanwhile
                drop()
                return
            self.remove(key)
            self.entries[key] = loaded, drop
            for place, size in loaded.items():
                self.holders[place] = self.holders.get(place, 0) + 1
                self.total += size if self.holders[place] == 1 else 0
            self.use(key)
            self.shrink(self.limit, key)

    def use(self, key: Key) -> None:
        """Note that an entry was used, and its run with it."""
        with self.lock:
            for one in ((key[0], None), key):
                if one in self.entries:
                    self.entries.move_to_end(one)

    def shrink(self, most: int, key: Key | None = None) -> None:
        """Let the least recently used go until all hold no more than `most` bytes. key: what is in use; as a value it goes last, its run
        never."""
        with self.lock:
            run = (key[0], None) if key is not None else None
            for one in [k for k in self.entries if k not in (key, run)]:
                if self.total <= most:
                    return
                self.drop(one)
            if key is not None and key != run and self.total > most:
                self.drop(key)

    def drop(self, key: Key) -> None:
        """Let an entry go; with a run its values."""
        with self.lock:
            for one in [k for k in self.entries if k == key or (key[1] is None and k[0] == key[0])]:
                drop = self.entries[one][1]
                self.remove(one)
                drop()

    def remove(self, key: Key) -> None:
        """Count an entry no longer."""
        loaded, _ = self.entries.pop(key, ({}, None))
        for place, size in loaded.items():
            self.holders[place] -= 1
            if not self.holders[place]:
                del self.holders[place]
                self.total -= size
