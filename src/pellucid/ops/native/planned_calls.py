"""The calls of a plan: which waits for which, and which are joined into one.

A call waits for the last earlier call that wrote memory it reads or writes, or read memory it writes. The two products of a gated
feed-forward part and the gate of them become one call where only the gate reads what they write:

    many  gate · x -> g     many  up · x -> u     gate  act(g) · u -> y          neurons_many  act(gate · x) · (up · x) -> y
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import unpack_from

from torch import Tensor

from pellucid.ops.native import library
from pellucid.ops.native.library import Op

Range = tuple[int, int]  # addresses, the second one past the end


@dataclass(frozen=True)
class PlannedCall:
    """One call of a plan. after: the number of leading calls that must be done before it starts."""

    op: Op
    words: bytes
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    after: int = 0

    @property
    def half(self) -> int:
        """1 in bfloat16, 0 in float32."""
        return int(unpack_from("=q", self.words)[0]) - self.op.code

    @property
    def fields(self) -> Mapping[str, float]:
        """The words by their names."""
        return dict(zip(self.op.fields, self.op.unpacked(self.words)[3:], strict=True))


def extent(t: Tensor) -> Range:
    """Return the range of addresses that a tensor spans."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + reach * t.element_size()


def overlap(a: Sequence[Range], b: Sequence[Range]) -> bool:
    return any(p < s and r < q for p, q in a for r, s in b)


def conflict(first: PlannedCall, second: PlannedCall) -> bool:
    """True if one of two calls writes memory that the other reads or writes."""
    return overlap(first.writes, (*second.reads, *second.writes)) or overlap(first.reads, second.writes)


def wire(calls: list[PlannedCall]) -> list[PlannedCall]:
    """Set `after` of each call: it waits for the last call that it conflicts with, and so for all before that."""
    wired: list[PlannedCall] = []
    for i, call in enumerate(calls):
        after = next((j + 1 for j in range(i - 1, -1, -1) if conflict(calls[j], call)), 0)
        wired.append(PlannedCall(call.op, call.words, call.reads, call.writes, after))
    return wired


def planned(name: str, half: int, reads: tuple[Range, ...], writes: tuple[Range, ...], /, **words: float) -> PlannedCall:
    """Return a call of a kernel, whose words are `library.call`'s."""
    assert library.lib is not None
    op = library.lib.ops[name]
    return PlannedCall(op, op.line(half, words), reads, writes)


def joined(calls: Sequence[PlannedCall], died: Callable[[int], bool]) -> list[PlannedCall]:
    """Return a plan's calls, the three of a gated part as one where the kernels have it. died(i): no tensor has what call i wrote."""
    if library.lib is None or "neurons_many" not in library.lib.ops:
        return list(calls)
    done, i = list[PlannedCall](), 0
    while i < len(calls):
        three = calls[i : i + 3]
        one = neurons(three)
        if one and died(i) and died(i + 1) and not any(read_before_written(c.writes[0], calls[i + 3 :]) for c in three[:2]):
            done.append(one)
            i += 3
        else:
            done.append(calls[i])
            i += 1
    return done


def neurons(three: Sequence[PlannedCall]) -> PlannedCall | None:
    """Return two products of the same rows and the gate of them as one call. None if they are something else."""
    if [call.op.name for call in three] != ["many", "many", "gate"] or not all(call.half for call in three):
        return None
    gate, up, act = (call.fields for call in three)
    same = all(gate[name] == up[name] for name in ("x", "rows", "n", "k")) and act["n"] == gate["rows"] * gate["n"]
    reads = (*three[0].reads, *three[1].reads)
    if not same or (act["g"], act["up"]) != (gate["y"], up["y"]) or overlap(three[2].writes, reads):
        return None
    return planned(
        "neurons_many", 1, reads, three[2].writes, gate=gate["w"], up=up["w"], x=gate["x"], y=act["y"], gate_bias=gate["bias"],
        up_bias=up["bias"], rows=gate["rows"], n=gate["n"], k=gate["k"], act=act["act"], amount=act["amount"],
    )  # fmt: skip


def read_before_written(memory: Range, calls: Sequence[PlannedCall]) -> bool:
    """True if one of these calls reads from a range what none of them has written before."""
    written = list[Range]()
    for call in calls:
        for first, end in call.reads:
            part = max(first, memory[0]), min(end, memory[1])
            if part[0] < part[1] and not any(p <= part[0] and part[1] <= q for p, q in written):
                return True
        written += call.writes
    return False
