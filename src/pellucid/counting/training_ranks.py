"""A rank of a training run: what it holds of weights, gradients and moments, and what it sends in a step.

    data ranks with a copy each      the gradients are added up once a step, by a ring: 2·(n − 1)/n of them are sent
    with one copy between n          each has ⌈rows / n⌉ rows of every weight. A forward and its backward pass gather a block twice, what is
                                     outside of blocks once, and add up each gradient once: n − 1 times the own rows each
                                     copies of that, if there are several, add up the own rows' gradients once a step
                                     what several blocks read, as all of ALBERT's, each has complete: its gradient is added up once a step

Ranks that share a model add up in a ring what each of them made of a row, and in the backward pass the gradients of what each read:

    summed     forward: after the table, after attention, after the feed-forward part, as `ranks.summed` has it
    shared     backward: the gradient of x at the door of attention (of MLA's latents and rotary key), of the feed-forward part and of the
               head; of a mixture also that of the shares of the chosen experts
    logits     each rank's part of the vocabulary, gathered for every row
    partial    once a step, the gradients of weights that each rank uses for its own heads or neurons, as q_norm

Muon keeps one moment of a matrix, not two, and needs it complete: `matrices` is what a rank sends to gather its parts, once a step.

Numbers of a loss, of a norm and of what ranks agree on are not counted: a few bytes each.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import NamedTuple

from pellucid.axes import letters
from pellucid.config import Layer
from pellucid.counting.bill import Bill
from pellucid.counting.distinct import PLACE
from pellucid.counting.number import Number, total
from pellucid.counting.ranks import Rank, Split, check, on_every_rank, ring, shard, stack, summed
from pellucid.counting.training_extra import at_least
from pellucid.nn.block import NORMED_RESULT

ONE = Split()
IN_A_HEAD = {"K", "W"}
NORMED_AFTER = {*NORMED_RESULT, "post"}
"""Orders in which a norm reads what the feed-forward part made, or its sum."""


@dataclass(frozen=True)
class TrainingGrid:
    """The ranks of a run. split: of those that share a model.  data: ranks with other documents.  shard: those of them with one copy.

    forwards: of a step on one data rank.  recompute: blocks run again in the backward pass.  muon: matrices of layers are Muon's.
    """

    split: Split = ONE
    data: int = 1
    shard: int = 1
    forwards: int = 1
    recompute: bool = False
    muon: bool = False


class RankWeight(NamedTuple):
    """The numbers that the first rank has of one weight, as many as any. inside: of a block.  partial: see `used_in_part`.

    complete: data ranks that share a copy have all of it.  single: of one moment.  gathered: the numbers that it sends, so that the ranks
    have the complete matrix.
    """

    numbers: int
    inside: bool
    complete: bool
    partial: bool
    single: bool
    gathered: int


def rank_weights(bill: Bill, g: TrainingGrid) -> Iterator[RankWeight]:
    """Yield what the first rank has of each weight that trains."""
    check(bill, g.split)
    rank = Rank(bill, g.split, (0, len(stack(bill.config))))
    for c in bill.weights:
        if not c.weight.parameter:
            continue
        shape, complete = shard(bill, c, g.split), g.shard > 1 and read_by_several(bill, c.path, c.times)
        grid = replace(g, shard=1) if complete else g
        own = ceil(shape[0] / grid.shard) * prod(shape[1:])
        partial = c.weight.dims is not None and PLACE.fullmatch(c.path) is not None and g.split.tp > 1
        partial = (
            partial and not on_every_rank(bill, c.path) and used_in_part(c.path, c.weight.dims, c.part == "experts" and g.split.experts > 1)
        )
        single = g.muon and orthogonalised(c.path, len(shape))
        gathered = gathered_matrix(shape, c.weight.shape, grid) if single else 0
        for _ in range(rank.copies(c.path, c.times)):
            yield RankWeight(own, PLACE.fullmatch(c.path) is not None, complete, partial, single, gathered)


def read_by_several(bill: Bill, path: str, times: int) -> bool:
    """True if several blocks read one weight. times: how many blocks have one like it, fewer than there are of the kind."""
    match = PLACE.fullmatch(path)
    return match is not None and times < bill.reduced.kind(match).count


def orthogonalised(path: str, ndim: int) -> bool:
    """Return whether Muon changes a parameter: a matrix of a layer or of a module for multi-token prediction, or a stack of these."""
    return ("layers." in path or path.startswith("multi_token.")) and ndim >= 2 and "bias" not in path


def gathered_matrix(shape: tuple[int, ...], full: tuple[int, ...], g: TrainingGrid) -> int:
    """Return the numbers that a rank sends to gather a matrix, or a stack. shape: of a model rank's part of `full`.

    0 where a rank has complete matrices, or some of a stack. A ring of data ranks gathers the rows, then one of a model's ranks the rest.
    """
    rows = g.shard > 1 and len(shape) == 2
    if not rows and shape[-2:] == full[-2:]:
        return 0
    of_model = (max(g.split.tp, g.split.experts) - 1) * prod(shape) if shape != full else 0
    return (g.shard - 1) * ceil(shape[0] / g.shard) * prod(shape[1:]) + of_model


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
    if single := sum(p.numbers for p in parts if p.single):
        out["moments"] = Number((2 * own - single) * size, "2·own·b − M·b", f"2·{own:,}·{size} − {single:,}·{size}")
    sent, each = {}, narrow or size
    if n == 1 and each < size:
        out |= {"weights": Number(own * each, "own·b", f"{own:,}·{each}"), "master": Number(own * size, "own·b", f"{own:,}·{size}")}
    if n > 1:
        blocks, f = sum(p.numbers for p in parts if p.inside and not p.complete), g.forwards
        ends, own = own - sum(p.numbers for p in parts if p.inside), own - sum(p.numbers for p in parts if p.complete)
        sent["gathered"] = Number(
            f * (n - 1) * (2 * blocks + ends) * each, "forwards·(n−1)·(2·blocks + ends)·b", f"{f}·{n - 1}·(2·{blocks:,} + {ends:,})·{each}"
        )
        sent["scattered"] = Number(f * (n - 1) * own * size, "forwards·(n−1)·own·b", f"{f}·{n - 1}·{own:,}·{size}")
    sent |= dict(between_ranks_of_a_model(bill, g, each, sum(p.numbers for p in parts if p.partial) * size))
    rings = {g.data // n: own, g.data: sum(p.numbers for p in parts if p.complete)} if n > 1 else {g.data: own}
    if rings := {ranks: numbers for ranks, numbers in rings.items() if ranks > 1 and numbers}:
        value = sum(2 * (ranks - 1) * numbers * size // ranks for ranks, numbers in rings.items())
        filled = " + ".join(f"2·{ranks - 1}/{ranks}·{numbers:,}·{size}" for ranks, numbers in rings.items())
        sent["added_up"] = Number(value, "Σ 2·(n−1)/n·own·b" if len(rings) > 1 else "2·(n−1)/n·own·b", filled)
    if gathered := sum(p.gathered for p in parts):
        sent["matrices"] = Number(gathered * size, "Σ (n−1)·parts·b", f"{gathered:,}·{size}")
    if sent:
        out |= sent | {"sent": total((name, 1, number) for name, number in sent.items())}
    return out


def used_in_part(path: str, dims: str | None, complete: bool) -> bool:
    """True for a weight that every rank has, and uses for its own heads or neurons alone. complete: of experts on one rank each."""
    return dims is not None and not complete and (letters(dims) <= IN_A_HEAD or path.endswith(".down_bias"))


def between_ranks_of_a_model(bill: Bill, g: TrainingGrid, each: int, partial: int) -> Iterator[tuple[str, Number]]:
    """Yield the bytes that a rank sends in a step to those that share a model with it. each: bytes of a number in a forward.

    partial: bytes of the gradients that are added up once a step.
    """
    n, f, cfg, s = max(g.split.tp, g.split.experts), g.forwards, bill.config, bill.setting
    if n == 1:
        return
    reads, own, source = len(cfg.encoder or ()), s.batch * s.context, s.batch * (s.source or s.context)
    sums, shared = Counter[int](), Counter[int]()
    for i, layer in enumerate(stack(cfg)):
        rows = source if i < reads else own
        again = repeated(layer, g.split) if g.recompute else 0
        sums[rows * cfg.width * each] += f * (summed(layer, g.split) + again + (g.split.tp > 1 and i in (0, reads)))
        for of, numbers, wide in read_by_all(layer, g.split, cfg.width):
            shared[(source if of == "source" else rows) * numbers * (at_least(each) if wide else each)] += f
    if g.split.tp > 1 and cfg.head:
        shared[own * cfg.width * each] += f
    yield "summed", ring(2 * (n - 1), n, "sums·X", sums)
    yield "shared", ring(2 * (n - 1), n, "Σ reads", shared)
    if g.split.tp > 1 and cfg.head:
        yield "logits", ring(n - 1, n, "B·T·V·b", {own * n * each: f * ceil(cfg.vocab / n)})
    if partial:
        yield "partial", ring(2 * (n - 1), n, "own·b", {partial: 1})


def read_by_all(layer: Layer, split: Split, width: int) -> Iterator[tuple[str, int, bool]]:
    """Yield what each rank reads for its own heads, neurons or experts: whose rows, their numbers, and whether in float32 at least."""
    ffn = layer.ffn
    for numbers in layer.attn.read_by_heads(width) if split.tp > 1 else ():
        yield "own", numbers, False
    if split.tp > 1 and layer.cross is not None:
        yield "own", width, False
        yield "source", width, False
    if ffn.experts and max(split.tp, split.experts) > 1:
        yield "own", width, False
        yield "own", ffn.chosen, True
    if split.tp > 1 and (ffn.shared if ffn.experts else ffn.width):
        yield "own", width, False


def repeated(layer: Layer, split: Split) -> int:
    """Return the sums of a block that runs again in the backward pass: all, but for one that no later part needs for its gradient."""
    every = summed(layer, split)
    ends = layer.order not in NORMED_AFTER and not (layer.ffn.shared and (getattr(layer.ffn, "shared_gate", False) or split.tp == 1))
    return every - int(ends and every > 0)
