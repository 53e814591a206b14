"""Launches that are done in one. Each kernel costs about two microseconds beside its work, a step of 32 blocks has 600 of them.

    linear q, linear k, linear v            one launch over three weights
    linear gate, linear up, gate            one launch: both products, then the activation
    add, norm                               one launch: the sum, then its norm
    rotate q, rotate k, store               one launch: both rotated, k and v written to their pages

While a graph is recorded a launch waits for the next, which may join it. Every tensor is written all the same, with the same numbers, so
a watch sees what it would have seen. A torch op, which reads what is not written yet, launches what waits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Call = tuple[str, tuple[Any, ...]]  # a kernel's name, and its tensors and settings
launches: dict[tuple[str, ...], Callable[..., None]] = {}  # by the kernels that a launch does, in their order
COMPLETE = ("linear", "linear", "gate"), ("add", "norm"), ("rotate", "rotate", "store")  # nothing joins these
ALLOCATIONS = {"aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided"}


class WaitingLaunches(local):
    """The state of this thread. waiting: the launches that the next may join, None unless a graph is recorded."""

    waiting: list[Call] | None = None


here = WaitingLaunches()


def same(a: Any, b: Any) -> bool:
    """True if two tensors are one memory."""
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.data_ptr() == b.data_ptr() and a.numel() == b.numel()


def joins(waiting: Sequence[Call], name: str, call: tuple[Any, ...]) -> bool:
    """True if a launch can be done with those that wait."""
    names = tuple(n for n, _ in waiting)
    first, last = waiting[0][1], waiting[-1][1]
    match (*names, name):
        case ("linear", "linear") | ("linear", "linear", "linear"):
            alike = (first[2] is None) == (call[2] is None) and first[3].dtype is call[3].dtype
            return same(first[0], call[0]) and alike
        case ("linear", "linear", "gate"):
            plain = first[2] is None and first[1].shape == last[1].shape and first[3].dtype is call[2].dtype
            return plain and same(first[3], call[0]) and same(last[3], call[1])
        case ("add", "norm"):
            return same(first[2], call[0]) and first[2].shape[-1] == call[0].shape[-1]
        case ("rotate", "rotate"):
            return same(first[1], call[1]) and same(first[2], call[2]) and first[4] == call[4] and first[0].shape[3] == call[0].shape[3]
        case ("rotate", "rotate", "store"):
            return same(last[3], call[0]) and call[1].shape[:3] == last[0].shape[:3]
    return False


def submit(name: str, *call: Any) -> None:
    """Launch a kernel, or let it wait for the next."""
    if here.waiting is None:
        launches[(name,)](call)
        return
    if here.waiting and not joins(here.waiting, name, call):
        flush()
    here.waiting.append((name, call))
    if len(here.waiting) > 1 and (*(n for n, _ in here.waiting),) in COMPLETE:
        flush()


def flush() -> None:
    """Launch what waits: together where there is a launch for all, else one after another."""
    if not here.waiting:
        return
    waiting, here.waiting = here.waiting, []
    names = tuple(n for n, _ in waiting)
    if names in launches:
        launches[names](*(call for _, call in waiting))
    else:
        for name, call in waiting:
            launches[(name,)](call)


class TorchOps(TorchDispatchMode):
    """A mode in which an op of torch that reads data launches first what waits."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if here.waiting and not (func.is_view or func._schema.name in ALLOCATIONS):
            flush()
        return func(*args, **(kwargs or {}))


@contextmanager
def merging() -> Iterator[None]:
    """Let launches inside wait for those that may join them."""
    outer, here.waiting = here.waiting, []
    try:
        with TorchOps():
            yield
        flush()
    finally:
        here.waiting = outer
