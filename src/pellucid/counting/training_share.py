"""The share that one of a model's ranks has of a training step: its part of the model on meta, without processes, and of the products.

What a rank exchanges has the shape that it has between processes. Rows of experts are as many on each rank.
"""

from math import prod

import torch
from torch import Tensor

from pellucid.counting.bill import Bill, Counted
from pellucid.counting.bounds import multiplicity
from pellucid.counting.meta_run import meta_model
from pellucid.counting.ranks import Rank, Split, shard, stack
from pellucid.distributed import ExpertRanks, Ranks
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.sharding import check, split_model


class MetaRanks(Ranks):
    """The ranks of a model on meta, of which only the first is there."""

    def of_experts(self) -> ExpertRanks:
        return MetaExpertRanks(**vars(self))

    def add_up(self, x: Tensor, group: object) -> Tensor:
        return x

    def gather(self, x: Tensor, axis: int, size: int) -> Tensor:
        """Return a tensor of the gathered shape."""
        shape = [*x.shape]
        shape[axis] = size
        return x.new_empty(shape)


class MetaExpertRanks(MetaRanks, ExpertRanks):
    """The same of a layer whose experts are complete on one rank each."""

    def own_rows(self, order: Tensor, token: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return as many rows as each rank has on average: no router has run."""
        first, last = self.bounds(len(ends))
        rows = -(-len(order) // self.sharing)
        return order[:rows], token[:rows], ends[first:last]


def on_meta_ranks(split: Split) -> MetaRanks:
    """Return the first of the ranks that share a model."""
    return MetaRanks(tensor=split.tp, expert=split.experts)


def divide(model: Decoder | EncoderDecoder, split: Split) -> None:
    """Leave a model on meta the first rank's part of its weights, in its place."""
    if split.ranks > 1:
        split_model(model, on_meta_ranks(split))


def divides(bill: Bill, split: Split) -> bool:
    """True if a model trains on these ranks: tensor and expert ranks that have as much of it each."""
    if split.ranks != max(split.tp, split.experts):
        return False
    try:
        check(meta_model(bill.reduced.config, torch.bfloat16), on_meta_ranks(split))
    except UseError:
        return False
    return True


def share_of_work(bill: Bill, split: Split) -> float:
    """Return a rank's share of the products of a forward: of matrices on every rank it has all."""
    if split.ranks == 1:
        return 1.0
    rank = Rank(bill, split, (0, len(stack(bill.config))))
    flops = [(name, multiplicity(bill, name) * int(n)) for name, n in bill.below("flops.prefill")]
    return sum(n * rank.work(name) for name, n in flops) / sum(n for _, n in flops)


def own_numbers(bill: Bill, c: Counted, split: Split) -> int:
    """Return the numbers that a rank has of a weight."""
    return prod(shard(bill, c, split)) if split.ranks > 1 else c.weight.count
