"""The calls of a gated part that a plan joins: one call with the bits of three, where nothing else reads what lies between them."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.native import library, planned_calls
from pellucid.ops.native.plan import Plan, Recording
from tiny import swapped

pytestmark = pytest.mark.skipif(library.lib is None or not library.lib.tiles, reason="no tiles here (AMX)")
ROWS = (17, 33, 64, 65, 130, 600)  # two to four groups of sixteen, more, two pieces of rows
SHAPES = ((31, 40), (70, 96), (257, 288), (600, 320))  # of a weight: columns of one piece and several, odd ends, blocks of k
ACTS = ("silu", "gelu", "gelu_tanh", "relu", "clamped")
THREE, ONE = ["pack", "many", "many", "gate"], ["pack", "neurons_many"]


@pytest.fixture(autouse=True)
def _any_rows() -> Iterator[None]:
    with torch.no_grad(), native.any_rows():
        yield


class Part:
    """A gated part with weights drawn for a shape [n k], for `rows` rows."""

    def __init__(self, rows: int, n: int, k: int, bias: bool = False) -> None:
        torch.manual_seed(rows + n + k)
        self.x = torch.randn(1, rows, k).bfloat16()
        self.gate, self.up = (torch.randn(n, k).bfloat16() / k**0.5 for _ in range(2))
        self.biases = [torch.randn(n).bfloat16() if bias else None for _ in range(2)]

    def products(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the gate and of `up`."""
        return native.linear(x, self.gate, self.biases[0]), native.linear(x, self.up, self.biases[1])

    def neurons(self, x: Tensor, act: str = "silu") -> Tensor:
        return native.gate(*self.products(x), act)


def names(plan: Plan) -> list[str]:
    return [call.op.name for call in plan.calls]


def recorded(part: Part, act: str = "silu") -> tuple[Plan, Tensor]:
    """Return the plan of a part in reused memory, and what it writes."""
    with native.record(native.ReusedMemory(), dry=True) as recording:
        y = part.neurons(part.x, act)
    return recording.plan(), y


def check(part: Part, act: str = "silu") -> None:
    """Assert that one call takes the place of three, and writes what they write, also for other rows in the same memory."""
    plan, y = recorded(part, act)
    assert names(plan) == ONE
    for _ in range(2):
        y.fill_(float("nan"))
        plan.replay()
        assert torch.equal(y, part.neurons(part.x, act)), (part.x.shape, part.gate.shape, act)
        part.x.copy_(torch.randn(part.x.shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_one_call_has_the_bits_of_three(shape: tuple[int, int]) -> None:
    for rows in ROWS:
        check(Part(rows, *shape, bias=rows % 2 == 1))


@pytest.mark.parametrize("act", ACTS)
def test_each_activation(act: str) -> None:
    check(Part(65, 70, 96, bias=True), act)


def test_fewer_rows_than_were_recorded() -> None:
    part = Part(130, 257, 96)
    plan, y = recorded(part)
    words = native.RowWords(plan, 130, slice(0, len(plan.calls)))
    for rows in (100, 40, 17, 130):
        words.set(rows)
        y.fill_(float("nan"))
        plan.replay()
        assert torch.equal(y[:, :rows], part.neurons(part.x[:, :rows].contiguous())) and bool(y[:, rows:].isnan().all())


def test_float32_stays_three_calls() -> None:
    part = Part(40, 70, 96)
    part.x, part.gate, part.up = part.x.float(), part.gate.float(), part.up.float()
    assert names(recorded(part)[0]) == THREE


def test_a_product_that_a_tensor_has_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor between the calls that is kept, as one of a hook's, has the numbers of a replay."""

    def written(which: int) -> bool:
        part = Part(40, 70, 96)
        with native.record(native.ReusedMemory(), dry=True) as recording:
            kept = part.products(part.x)
            native.gate(*kept, "silu")
            own = kept[which]
            del kept
        plan = recording.plan()
        plan.replay()
        return torch.equal(own, part.products(part.x)[which])

    assert written(0) and written(1)
    monkeypatch.setattr(Recording, "died", lambda recording, call: True)
    assert not (written(0) and written(1))


def test_a_product_that_a_later_call_reads_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def right() -> bool:
        part = Part(40, 70, 96)
        with native.record(native.ReusedMemory(), dry=True) as recording:
            gate, up = part.products(part.x)
            y = native.add(native.gate(gate, up, "silu"), up)
            del gate, up
        plan = recording.plan()
        plan.replay()
        return torch.equal(y, native.add(part.neurons(part.x), part.products(part.x)[1]))

    assert right()
    monkeypatch.setattr(planned_calls, "read_before_written", lambda memory, calls: False)
    assert not right()


def test_memory_that_is_written_again_does_not_count_as_read() -> None:
    """Two parts one after the other in the same memory are both joined."""
    first, second = Part(40, 96, 96), Part(40, 96, 96)
    with native.record(native.ReusedMemory(), dry=True) as recording:
        y = second.neurons(first.neurons(first.x))
    plan = recording.plan()
    assert names(plan) == ONE * 2
    plan.replay()
    assert torch.equal(y, second.neurons(first.neurons(first.x)))


@pytest.mark.parametrize("other", ["x", "n"])
def test_two_products_that_are_no_pair_stay(other: str) -> None:
    part = Part(40, 96, 96)
    rows = native.add(part.x, part.x) if other == "x" else part.x
    with native.record(native.ReusedMemory(), dry=True) as recording:
        g, up = native.linear(part.x, part.gate, None), native.linear(rows, part.up, None)
        native.gate(up, g, "silu") if other == "n" else native.gate(g, up, "silu")
        del g, up
    assert "neurons_many" not in names(recording.plan())


def test_neurons_of_one_product_alone_are_seen() -> None:
    """A mutant: the gate's own product stands in the place of `up`."""
    part = Part(40, 70, 96)

    def wrong(three: list[planned_calls.PlannedCall]) -> planned_calls.PlannedCall | None:
        one = neurons(three)
        words = {} if one is None else dict(one.fields) | {"up": one.fields["gate"]}
        return one and planned_calls.planned("neurons_many", 1, one.reads, one.writes, **words)

    neurons = planned_calls.neurons
    with swapped(planned_calls, "neurons", wrong), pytest.raises(AssertionError):
        check(part)
