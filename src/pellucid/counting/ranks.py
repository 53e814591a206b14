"""Several devices: what tensor, pipeline and expert splits put on each rank, and the bytes that ranks exchange in a step.

    tp   heads H, groups G, neurons F and the vocabulary V are split; the width D, latents and norms are on every rank
    pp   layers, in stages of equal length; the first stages take what is left over, and the table and the head stand at the ends
    ep   whole experts E; their tokens travel

A stage's attention is on max(tp, ep) ranks: where ep is larger, groups of tp ranks hold copies of it, each for its part of the batch.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, prod

from pellucid.axes import parse
from pellucid.config import Attention, Layer, Moe
from pellucid.counting.bill import BYTES, Bill, Counted, rows_kept
from pellucid.counting.bounds import multiplicity
from pellucid.counting.distinct import PLACE
from pellucid.counting.formats import size
from pellucid.counting.number import Number, total
from pellucid.errors import UseError

LETTERS = {"H": "tp", "G": "tp", "F": "tp", "V": "tp", "E": "ep"}


@dataclass(frozen=True)
class Split:
    """How many ranks share: tensors, layers, experts."""

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.pp * max(self.tp, self.ep)


@dataclass(frozen=True)
class Stage:
    """One rank of a stage: its layers as (first, last + 1), its parameters, their bytes, and its part of the past."""

    layers: tuple[int, int]
    parameters: int
    weights: int
    cache: int


@dataclass(frozen=True)
class Spread:
    """A model over ranks. sent: bytes that one rank sends in a step, by phase and by what they are."""

    split: Split
    stages: tuple[Stage, ...]
    sent: dict[str, dict[str, Number]] = field(default_factory=dict)


def split_of(asked: str) -> Split:
    """What "tp=8,pp=2,ep=8" asks for."""
    found = re.findall(r"(?:^|,)(tp|pp|ep)=([1-9]\d{0,5})(?=,|$)", asked)
    names = [name for name, _ in found]
    if not found or ",".join(f"{name}={n}" for name, n in found) != asked or len(set(names)) != len(names):
        raise UseError("count.ranks", found=asked)
    return Split(**{name: int(n) for name, n in found})


def spread(bill: Bill, split: Split) -> Spread:
    """What every rank holds and sends."""
    check(bill, split)
    stages = tuple(stage(bill, split, i, bounds) for i, bounds in enumerate(cuts(len(bill.config.layers), split.pp)))
    return Spread(split, stages, {phase: dict(sent(bill, split, phase)) for phase in ("prefill", "decode") if f"flops.{phase}" in bill})


def check(bill: Bill, split: Split) -> None:
    """Refuse a split that would cut a head, a neuron or an expert."""
    cfg = bill.config
    if cfg.encoder is not None:
        raise UseError("count.ranks.encoder", found=bill.model)
    for i, one in enumerate(cfg.layers):
        if one.attn.heads % split.tp:
            raise UseError("count.ranks.even", name="tp", found=split.tp, what="H", size=one.attn.heads, layer=i)
        groups = one.attn.kv_heads if isinstance(one.attn, Attention) else 1
        if max(groups, split.tp) % min(groups, split.tp):
            raise UseError("count.ranks.even", name="tp", found=split.tp, what="G", size=groups, layer=i)
        if one.ffn.width % split.tp and not (isinstance(one.ffn, Moe) and split.ep > 1):
            raise UseError("count.ranks.even", name="tp", found=split.tp, what="F", size=one.ffn.width, layer=i)
        if split.ep > 1 and isinstance(one.ffn, Moe) and one.ffn.experts % split.ep:
            raise UseError("count.ranks.even", name="ep", found=split.ep, what="E", size=one.ffn.experts, layer=i)
    if split.pp > len(cfg.layers):
        raise UseError("count.ranks.layers", found=split.pp, most=len(cfg.layers))
    if max(split.tp, split.ep) % min(split.tp, split.ep):
        raise UseError("count.ranks.together", tp=split.tp, ep=split.ep)


def cuts(layers: int, stages: int) -> Iterator[tuple[int, int]]:
    """Layers of each stage: 61 over 4 are 16, 15, 15, 15."""
    start = 0
    for i in range(stages):
        end = start + layers // stages + (i < layers % stages)
        yield start, end
        start = end


def stage(bill: Bill, split: Split, i: int, bounds: tuple[int, int]) -> Stage:
    """One rank of the i-th stage."""
    s = bill.setting
    held = weights = cache = 0
    for c in bill.weights:
        if times := here(bill, c.path, c.times, i, bounds, split.pp):
            shape = shard(bill, c, split)
            held += times * prod(shape) * c.weight.parameter
            weights += times * int(size(c, s.weights, s.activations, shape))
    for name, number in bill.within("cache"):
        if PLACE.fullmatch(name):
            attn = bill.layer(name).attn
            part = kept(attn.kv_heads, split.tp) / attn.kv_heads if isinstance(attn, Attention) else 1.0
            requests = ceil(s.batch / max(1, split.ep // split.tp))
            times = here(bill, name, multiplicity(bill, name), i, bounds, split.pp)
            cache += times * requests * int(int(number) * part) * rows_kept(bill.layer(name), s.context)
    return Stage(bounds, held, weights, cache)


def here(bill: Bill, path: str, times: int, i: int, bounds: tuple[int, int], stages: int) -> int:
    """How many of a path's copies the i-th stage has: of layers, those between its bounds; the table in the first, the end in the last."""
    found = PLACE.fullmatch(path)
    if found is not None:
        kind = next(k for k in bill.reduced.kinds if k.stack == found["stack"] and k.first == int(found["number"]))
        inside = sum(bounds[0] <= n < bounds[1] for n in kind.numbers)
        return inside if times == kind.count else min(inside, times)  # what layers share, each stage has once
    ends = path.startswith(("norm.", "head.", "transform.", "narrow."))
    tied = path == "embed.weight" and bill.config.tied and bill.config.head
    return int(i == stages - 1 if ends else i == 0 or (tied and i == stages - 1))


def kept(groups: int, ranks: int) -> int:
    """Groups of keys and values on a rank: never below one, so that several ranks hold the same where there are fewer than ranks."""
    return max(1, groups // ranks)


def shard(bill: Bill, c: Counted, split: Split) -> tuple[int, ...]:
    """A weight's shape on one rank, by the letters of its axes."""
    if c.weight.dims is None:
        return c.weight.shape
    out = []
    whole = split.ep > 1 and c.part == "experts"  # an expert is on one rank
    for axis, n in zip(parse(c.weight.dims), c.weight.shape, strict=True):
        letters = {x for factor in axis for x in factor}
        by = next((split.ep if LETTERS[x] == "ep" else split.tp for x in LETTERS if x in letters), 1)
        if c.part == "router" or (whole and "E" not in letters):
            by = 1  # every rank routes its own tokens
        if "G" in letters:
            attn = bill.layer(c.path).attn
            assert isinstance(attn, Attention)
            out.append(n // attn.kv_heads * kept(attn.kv_heads, split.tp))
        else:
            out.append(ceil(n / by))
    return tuple(out)


def sent(bill: Bill, split: Split, phase: str) -> Iterator[tuple[str, Number]]:
    """Bytes that one rank of the first stage sends in a step: rows of activations, by the formulas of a ring (n ranks, X = B·T·D·b)."""
    s, cfg = bill.setting, bill.config
    rows = ceil(s.batch / max(1, split.ep // split.tp)) * (s.context if phase == "prefill" else 1)
    x = rows * cfg.width * int(BYTES[s.activations])
    layers = cfg.layers[: next(cuts(len(cfg.layers), split.pp))[1]]
    found = {}
    if (n := split.tp) > 1:
        sums = 1 + sum(summed(one, split) for one in layers)  # one after the table, whose rows are split as well
        found["all_reduce"] = Number(2 * (n - 1) * sums * x // n, "2(n−1)/n·sums·X", f"2·{n - 1}/{n}·{sums}·{x:,}")
    if (n := split.ep) > 1:
        chosen = sum(one.ffn.chosen for one in layers if isinstance(one.ffn, Moe))
        value = 2 * (n - 1) * chosen * x // (n * split.tp)
        found["all_to_all"] = Number(value, "2(n−1)/n·ΣA·X/tp", f"2·{n - 1}/{n}·{chosen}·{x:,}/{split.tp}")
    if split.pp > 1:
        found["pipeline"] = Number(x, "X", "")
    yield from found.items()
    if found:
        yield "total", total((name, 1, number) for name, number in found.items())


def summed(one: Layer, split: Split) -> int:
    """Sums over ranks in a layer: after attention, and after a feed-forward part whose neurons are split."""
    split_ffn = split.ep == 1 or not isinstance(one.ffn, Moe) or one.ffn.shared > 0
    return 1 if one.order.startswith("parallel") and split_ffn else 1 + split_ffn
