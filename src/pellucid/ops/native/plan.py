"""Plans: a step's native calls, recorded during one ordinary forward, and replayed by one C call.

    with record() as recording:
        logits = model(token, step)
    plan = recording.plan()
    plan.replay()                    # writes the same tensor, `logits`, from the data now behind the pointers

Everything that changes from step to step is behind a pointer: the token, the position, the table of pages. A plan owns the memory behind
its pointers. Which call waits for which, and which are joined, is in planned_calls.py.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from struct import pack_into
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.errors import UseError
from pellucid.ops.native import library
from pellucid.ops.native.library import Op
from pellucid.ops.native.planned_calls import PlannedCall, extent, joined, overlap, wire
from pellucid.ops.native.reused_memory import ReusedMemory

AFTER = 16  # the byte, in the words of a call, that says how many calls it waits for


class Unplannable(UseError):  # noqa: N818
    """A forward that touches data outside the native calls, so that a replay would leave work out."""


def same_memory(a: Tensor, b: Tensor) -> bool:
    """True if two tensors are the same numbers of the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype


class Plan:
    """A recorded step, valid until one of its weights or modules is replaced."""

    def __init__(self, calls: list[PlannedCall], alive: list[torch.UntypedStorage], memory: ReusedMemory | None = None) -> None:
        self.calls, self.alive, self.memory = wire(calls), alive, memory
        words, at = bytearray().join(call.words for call in calls), 0
        for call in self.calls:
            pack_into("=q", words, at + AFTER, call.after)
            at += len(call.words)
        self.words = (ctypes.c_char * len(words)).from_buffer(words)
        self.address = ctypes.addressof(self.words)

    def replay(self, count: int | None = None) -> None:
        """Run the step again on the data now behind its pointers, or its first `count` calls."""
        assert library.lib is not None
        library.lib.run(self.address, len(self.calls) if count is None else count, library.threads())

    def before(self, t: Tensor) -> int:
        """Return the number of calls before the first that reads t."""
        return next(i for i, call in enumerate(self.calls) if overlap(call.reads, (extent(t),)))

    def burst(self, words: Mapping[str, float]) -> int:
        """Run up to words["steps"] steps, each with the tokens that the one before has chosen: see burst.h, which names the words.

        Returns the number of steps that ran.
        """
        assert library.lib is not None
        line = library.lib.burst_words.line(0, words)
        return library.lib.burst(self.address, len(self.calls), library.threads(), line)  # type: ignore[no-any-return]


class Recording:
    """An open recording: its calls so far, and the memory behind their pointers.

    memory: of its output tensors; None: each has its own, so that a call waits for true dependencies only.
    dry: nothing runs while it is open.
    """

    def __init__(self, memory: ReusedMemory | None = None, dry: bool = False) -> None:
        self.memory, self.dry = memory, dry
        self.calls: list[PlannedCall] = []
        self.written: list[list[weakref.finalize[Any, Any] | None]] = []  # by call: of each tensor in reused memory, alive as long as it is
        self.alive: list[torch.UntypedStorage] = []  # not the tensors: a parameter may be given other memory
        self.off = False  # inside paused(): torch makes an output tensor, or a table that is the same at every step
        # the rows that were packed last, by what, what that made, and the calls up to then
        self.packed: tuple[Tensor, Callable[[Tensor], Tensor], Tensor, int] | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let torch touch data inside."""
        outer, self.off = self.off, True
        try:
            yield
        finally:
            self.off = outer

    def fresh(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate an output tensor."""
        with self.paused():
            return torch.empty(shape, dtype=dtype, device="cpu") if self.memory is None else self.memory.empty(shape, dtype)

    def add_call(self, op: Op, line: bytes, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> None:
        storages = (t.untyped_storage() for t in (*reads, *writes))
        self.alive += (s for s in storages if self.memory is None or not self.memory.holds(s))
        self.calls.append(PlannedCall(op, line, tuple(map(extent, reads)), tuple(map(extent, writes))))
        self.written.append([None if self.memory is None else self.memory.last.get(t.data_ptr()) for t in writes])

    def packed_once(self, x: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor:
        """Return pack(x), or what it made before if that was of the same rows and no call has written them since: as of q, k and v."""
        if self.packed is not None:
            last, by, packed, calls = self.packed
            if by is pack and same_memory(last, x) and not any(overlap(call.writes, (extent(x),)) for call in self.calls[calls:]):
                return packed
        packed = pack(x)
        self.packed = x, pack, packed, len(self.calls)
        return packed

    def plan(self) -> Plan:
        """Return the plan of the calls so far. Calls are joined where what lies between them is in no tensor any more."""
        self.packed = None  # which holds a tensor
        return Plan(joined(self.calls, self.died), self.alive, self.memory)

    def died(self, call: int) -> bool:
        """True if no tensor holds what a call has written, so that only later calls can read it."""
        return all(tensor is not None and not tensor.alive for tensor in self.written[call])


DTYPES = torch.ops.aten.promote_types.default  # of two dtypes a third


class TorchOpGuard(TorchDispatchMode):
    """A mode that raises Unplannable for every torch op that touches data, since a replay would leave it out. Views touch none."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first recording imports torch's compiler, for a second

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not (self.recording.off or func.is_view or func is DTYPES):
            raise Unplannable("plan.torch", op=str(func))
        return func(*args, **(kwargs or {}))


class Values(TorchFunctionMode):
    """A mode that raises Unplannable for a function that reads values without an op, since a replay would keep the old values."""

    refused = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.item, Tensor.__dlpack__)

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in self.refused and not self.recording.off:
            raise Unplannable("plan.torch", op=func.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def record(memory: ReusedMemory | None = None, dry: bool = False) -> Iterator[Recording]:
    """Record every native call of this thread. Raises Unplannable for a torch op that touches data, and if there are no kernels.

    memory, dry: see Recording.
    """
    if not library.available():
        raise Unplannable("plan.unavailable")
    outer, recording = library.here.recording, Recording(memory, dry)
    library.here.recording = recording
    try:
        with ExitStack() as modes:
            modes.enter_context(Values(recording))
            modes.enter_context(TorchOpGuard(recording))
            yield recording
    finally:
        library.here.recording = outer
