"""Rows that several products of a plan multiply are packed once, until a call writes them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.native import library
from pellucid.ops.native.plan import Recording

ROWS, K = 40, 96


def doubled(x: Tensor) -> None:
    """Double x [1 T D] in place by a kernel."""
    words = {name: x.data_ptr() for name in "xyz"}
    library.call("add", library.HALF[x.dtype], (x,), (x,), n=x.numel(), **words)


def check(between: Callable[[Tensor], object], packs: int) -> None:
    """Record two products of the same rows with a call between them, and assert how often they are packed, and the numbers of a replay."""
    if not native.available():
        return
    torch.manual_seed(0)
    x, weights = torch.randn(1, ROWS, K), [torch.randn(n, K) for n in (7, 130)]
    data = torch.randn(1, ROWS, K)
    with torch.no_grad(), native.any_rows():
        with native.record(native.ReusedMemory()) as recording:
            first = native.linear(x, weights[0], None)
            between(x)
            second = native.linear(x, weights[1], None)
        plan = recording.plan()
        assert [call.op.name for call in plan.calls].count("pack") == packs
        x.copy_(data)
        plan.replay()
        assert torch.equal(first, native.linear(data, weights[0], None))
        assert torch.equal(second, native.linear(x, weights[1], None))


def test_rows_are_packed_once() -> None:
    check(lambda x: None, 1)
    check(lambda x: native.add(x, x), 1)


def test_rows_that_a_call_has_written_are_packed_again() -> None:
    check(doubled, 2)


def test_other_rows_in_the_same_memory_are_packed_again() -> None:
    if not native.available():
        return
    memory, w, a = native.ReusedMemory(), torch.randn(7, K), torch.randn(1, ROWS, K)
    with torch.no_grad(), native.any_rows(), native.record(memory) as recording:
        for _ in range(2):
            x = native.add(a, a)
            native.linear(x, w, None)
            del x
    assert [call.op.name for call in recording.calls].count("pack") == 2


def test_rows_that_are_packed_once_for_good_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        return

    def first(self: Recording, x: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor:
        self.packed = self.packed or (x, pack(x), 0)
        return self.packed[1]

    monkeypatch.setattr(Recording, "packed_once", first)
    with pytest.raises(AssertionError):
        check(doubled, 2)
