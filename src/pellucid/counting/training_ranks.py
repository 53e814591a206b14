"""A rank of a training run: what it holds of weights, gradients and moments, and what data ranks send in a step.

    data ranks with a copy each      the gradients are added up once a step, by a ring: 2·(n − 1)/n of them are sent
    with one copy between n          each has ⌈rows / n⌉ rows of every weight. A forward and its backward pass gather a block twice, what is
                                     outside of blocks once, and add up each gradient once: n − 1 times the own rows each
                                     copies of that, if there are several, add up the own rows' gradients once a step

What tensor and expert ranks send in a forward is `ranks.sent` of a prefill.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

from pellucid.counting.bill import Bill
from pellucid.counting.distinct import PLACE
from pellucid.counting.number import Number, total
from pellucid.counting.ranks import Rank, Split, check, shard, stack

ONE = Split()


@dataclass(frozen=True)
class TrainingGrid:
    """The ranks of a run. split: of those that share a model.  data: ranks with other documents.  shard: those of them with one copy.

    forwards: of a step on one data rank.
    """

    split: Split = ONE
    data: int = 1
    shard: int = 1
    forwards: int = 1


class RankWeight(NamedTuple):
    """The numbers that the first rank has of one weight, as many as any. inside: of a block."""

    numbers: int
    inside: bool


def rank_weights(bill: Bill, g: TrainingGrid) -> Iterator[RankWeight]:
    """Yield what the first rank has of each weight that trains."""
    check(bill, g.split)
    rank = Rank(bill, g.split, (0, len(stack(bill.config))))
    for c in bill.weights:
        if not c.weight.parameter:
            continue
        shape = shard(bill, c, g.split)
        own = ceil(shape[0] / g.shard) * prod(shape[1:])
        for _ in range(rank.copies(c.path, c.times)):
            yield RankWeight(own, PLACE.fullmatch(c.path) is not None)


def of_rank(bill: Bill, g: TrainingGrid, size: int = 4, narrow: int | None = None) -> dict[str, Number]:
    """Return the bytes that a rank holds and those that it sends in a step, by name; its own numbers are counted once.

    size: bytes of a number of weights, gradients and moments.  narrow: of what a forward reads, by default the same. A rank with a copy of
    its own keeps such weights beside the master weights; one that shares a copy makes a block's of these.
    """
    parts = list(rank_weights(bill, g))
    own, n = sum(p.numbers for p in parts), g.shard
    out = {
        "weights": Number(own * size, "own·b", f"{own:,}·{size}"),
        "gradients": Number(own * size, "own·b", f"{own:,}·{size}"),
        "moments": Number(2 * own * size, "2·own·b", f"2·{own:,}·{size}"),
    }
    sent, each = {}, narrow or size
    if n == 1 and each < size:
        out |= {"weights": Number(own * each, "own·b", f"{own:,}·{each}"), "master": Number(own * size, "own·b", f"{own:,}·{size}")}
    if n > 1:
        blocks, f = sum(p.numbers for p in parts if p.inside), g.forwards
        ends = own - blocks
        sent["gathered"] = Number(
            f * (n - 1) * (2 * blocks + ends) * each, "forwards·(n−1)·(2·blocks + ends)·b", f"{f}·{n - 1}·(2·{blocks:,} + {ends:,})·{each}"
        )
        sent["scattered"] = Number(f * (n - 1) * own * size, "forwards·(n−1)·own·b", f"{f}·{n - 1}·{own:,}·{size}")
    if (copies := g.data // n) > 1:
        sent["added_up"] = Number(2 * (copies - 1) * own * size // copies, "2·(n−1)/n·own·b", f"2·{copies - 1}/{copies}·{own:,}·{size}")
    if sent:
        out |= sent | {"sent": total((name, 1, number) for name, number in sent.items())}
    return out
