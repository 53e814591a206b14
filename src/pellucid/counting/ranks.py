"""Several devices: what tensor, pipeline and expert splits put on each rank, and the bytes that ranks exchange in a step.

    tp   heads H, groups G, neurons F and the vocabulary V are split; the width D, latents and norms are on every rank
    pp   layers, in stages of equal length, the first ones longer by the remainder; the table and the head are at the ends.
         An encoder's layers come before its decoder's, whose stages all receive its output
    ep   complete experts E; their tokens are sent
    experts    complete experts E on ranks that read the same tokens, so that outputs are summed and nothing is sent: `torchrun` has it
         so here. tp is then as many, of the same ranks, or 1, and ep is 1

A stage's attention is on max(tp, ep) ranks: if ep is larger, groups of tp ranks have copies of it, each for its part of the batch.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod

from pellucid.axes import parse
from pellucid.config import AnyAttention, Config, Layer
from pellucid.counting.bill import BYTES, Bill, Counted
from pellucid.counting.bounds import Device, multiplicity, parts
from pellucid.counting.distinct import PLACE
from pellucid.counting.fit import MOST, largest, tokens
from pellucid.counting.formats import size
from pellucid.counting.number import Number, figure, product, total
from pellucid.errors import UseError

LETTERS = {"H": "tp", "G": "tp", "F": "tp", "V": "tp", "E": "ep"}


@dataclass(frozen=True)
class Split:
    """The number of ranks that share tensors, layers and experts. experts: of those that share experts and read the same tokens."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    experts: int = 1

    @property
    def ranks(self) -> int:
        return self.pp * max(self.tp, self.holders)

    @property
    def holders(self) -> int:
        """Return the number of ranks that have other experts."""
        return max(self.ep, self.experts)

    def sizes(self) -> dict[str, int]:
        """Return the numbers by the names that `split_of` reads, `experts` only if it is not 1."""
        return {name: n for name, n in vars(self).items() if name != "experts" or n > 1}


@dataclass(frozen=True)
class PipelineStage:
    """One rank of a stage: its layers as (first, last + 1), its parameters, their bytes, and its part of the cache.

    sent: bytes that it sends in a step, by phase and by kind.
    """

    layers: tuple[int, int]
    parameters: int
    weights: int
    cache: int
    sent: dict[str, dict[str, Number]] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A model split over ranks."""

    split: Split
    stages: tuple[PipelineStage, ...]


def split_of(text: str) -> Split:
    """Return the split that a text such as "tp=8,pp=2,ep=8" describes. A UseError if it is none."""
    pairs = re.findall(r"(?:^|,)(tp|pp|ep|experts)=([1-9]\d{0,5})(?=,|$)", text)
    names = [name for name, _ in pairs]
    if not pairs or ",".join(f"{name}={n}" for name, n in pairs) != text or len(set(names)) != len(names):
        raise UseError("count.ranks", found=text)
    return Split(**{name: int(n) for name, n in pairs})


def spread(bill: Bill, split: Split) -> Spread:
    """Return what every rank holds and sends."""
    check(bill, split)
    return Spread(split, tuple(stage(bill, split, bounds) for bounds in cuts(len(stack(bill.config)), split.pp)))


def stack(cfg: Config) -> tuple[Layer, ...]:
    """Return all layers in the order in which they run."""
    return (*(cfg.encoder or ()), *cfg.layers)


def check(bill: Bill, split: Split) -> None:
    """Refuse a split that would cut a head, a neuron or an expert."""
    layers = stack(bill.config)
    for i, one in enumerate(layers):
        for attn in (one.attn, one.cross):
            if attn is not None:
                if attn.heads % split.tp:
                    raise UseError("count.ranks.even", name="tp", found=split.tp, what="H", size=attn.heads, layer=i)
                groups = attn.kv_heads or 1
                if max(groups, split.tp) % min(groups, split.tp):
                    raise UseError("count.ranks.even", name="tp", found=split.tp, what="G", size=groups, layer=i)
        if one.ffn.width % split.tp and not (one.ffn.experts and split.holders > 1):
            raise UseError("count.ranks.even", name="tp", found=split.tp, what="F", size=one.ffn.width, layer=i)
        if one.ffn.experts % split.holders:
            name = "ep" if split.ep > 1 else "experts"
            raise UseError("count.ranks.even", name=name, found=split.holders, what="E", size=one.ffn.experts, layer=i)
    if split.pp > 1 and (later := next((i for i, one in enumerate(layers) if reads_before(one)), None)) is not None:
        raise UseError("count.ranks.before", found=split.pp, layer=later)
    if split.pp > len(layers):
        raise UseError("count.ranks.layers", found=split.pp, most=len(layers))
    if split.experts == 1 and max(split.tp, split.ep) % min(split.tp, split.ep):
        raise UseError("count.ranks.together", tp=split.tp, ep=split.ep)
    if split.experts > 1 and (split.ep > 1 or split.tp not in (1, split.experts)):
        raise UseError("count.ranks.experts", experts=split.experts, tp=split.tp, ep=split.ep)


def reads_before(layer: Layer) -> bool:
    """True if a layer reads more than the rows of the one before: keys and values of an earlier one, or what enters the first."""
    return layer.input is not None or layer.attn.keys == "shared"


def cuts(layers: int, stages: int) -> Iterator[tuple[int, int]]:
    """Yield the layers of each stage: 61 over 4 are 16, 15, 15, 15."""
    start = 0
    for i in range(stages):
        end = start + layers // stages + (i < layers % stages)
        yield start, end
        start = end


@dataclass(frozen=True)
class Rank:
    """One rank of the stage with these layers: what it holds, with formulas, and its part of a step (see `bounds.Holder`)."""

    bill: Bill
    split: Split
    bounds: tuple[int, int]

    def copies(self, path: str, times: int) -> int:
        return here(self.bill, path, times, self.bounds)

    def work(self, path: str) -> float:
        """Return the rank's share of a layer's products: its rows of a matrix, its heads, its experts, its part of the batch.

        Experts are assumed to be chosen equally often on every rank, so that the bound stays a bound.
        """
        served = requests(self.bill, self.split) / self.bill.setting.batch
        names = (f"{path}.weight", "embed.weight" if path == "head" else "")  # a head that has no matrix of its own is tied
        c = next((c for name in names for c in self.bill.weights if c.path == name), None)
        if c is not None:
            return served * prod(shard(self.bill, c, self.split)) / prod(c.weight.shape)
        if PLACE.fullmatch(path) and path.endswith(".ffn") and self.bill.layer(path).ffn.experts:
            return 1 / max(self.split.tp, self.split.holders)
        return served if on_every_rank(self.bill, path) else served / self.split.tp

    def bytes(self, c: Counted) -> float:
        s = self.bill.setting
        return float(size(c, s.weights, s.activations, shard(self.bill, c, self.split)))

    def row_bytes(self, path: str) -> float:
        return requests(self.bill, self.split) * part(self.bill.mixer(path), int(self.bill[f"cache.{path}"]), self.split)

    def state_bytes(self, path: str) -> float:
        return requests(self.bill, self.split) * float(self.bill[f"states.{path}"])

    def memory(self) -> float:
        s, cross = self.bill.setting, next(one.cross for one in self.bill.config.layers if one.cross is not None)
        each = int(self.bill["cache.bytes_per_source_token"]) // len(self.bill.config.layers)
        return requests(self.bill, self.split) * (s.source or s.context) * part(cross, each, self.split)

    def parameters(self) -> Number:
        """Return its parameters, by part of the model."""
        return self.summed({c.path: prod(shard(self.bill, c, self.split)) * c.weight.parameter for c in self.bill.weights})

    def weights(self) -> Number:
        """Return the bytes of its weights, by part."""
        return self.summed({c.path: int(self.bytes(c)) for c in self.bill.weights})

    def summed(self, each: Mapping[str, int]) -> Number:
        """Return the sum over weights, each as often as it is here."""
        sums = Counter[str]()
        for c in self.bill.weights:
            sums[c.part] += self.copies(c.path, c.times) * each[c.path]
        return total((name, 1, Number(n)) for name, n in sums.items() if n)

    def cache(self) -> Number:
        """Return the bytes of its part of the cache, layer by layer, and of what decoders keep of a source."""
        s, mine, layers = self.bill.setting, requests(self.bill, self.split), []
        for name, _ in self.bill.below("cache"):
            if PLACE.fullmatch(name) and (times := self.copies(name, multiplicity(self.bill, name))):
                rows = self.bill.mixer(name).rows_kept(s.context)
                layers.append((name, times, product(f"rows·B·cache.{name}", rows=rows, mine=mine, row=int(self.row_bytes(name)) // mine)))
        for name, each in self.bill.below("states"):
            if times := self.copies(name, multiplicity(self.bill, name)):
                layers.append((f"{name}.state", times, product(f"B·states.{name}", mine=mine, each=int(each))))
        crosses = sum(one.cross is not None for one in stack(self.bill.config)[slice(*self.bounds)])
        if crosses and "cache.bytes_per_source_token" in self.bill:
            layers.append(("source", crosses, Number(int(self.memory()))))
        symbols = " + ".join((f"{times}·" if times > 1 else "") + (n.symbols or name) for name, times, n in layers)
        filled = " + ".join((f"{times}·" if times > 1 else "") + (n.filled or figure(n.value)) for _, times, n in layers)
        return Number(sum(times * int(n) for _, times, n in layers), symbols, filled)

    def seconds(self, phase: str, device: Device) -> float:
        """Return the bound of its part of a phase, without the time of exchanges."""
        return sum(p.seconds for p in parts(self.bill, phase, device, self))


def stage(bill: Bill, split: Split, bounds: tuple[int, int]) -> PipelineStage:
    """Return one rank of the stage with these layers."""
    rank = Rank(bill, split, bounds)
    phases = [phase for phase in ("prefill", "decode") if f"flops.{phase}" in bill]
    sends = {phase: dict(sent(bill, split, phase, bounds)) for phase in phases}
    return PipelineStage(bounds, int(rank.parameters()), int(rank.weights()), int(rank.cache()), sends)


def ranks(bill: Bill, split: Split) -> list[Rank]:
    """Return a rank of each stage."""
    check(bill, split)
    return [Rank(bill, split, bounds) for bounds in cuts(len(stack(bill.config)), split.pp)]


@dataclass(frozen=True)
class Pace:
    """A phase over ranks, at best. stages: seconds of each, one after another, for one step of the full batch."""

    tokens: int
    stages: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return sum(self.stages)

    @property
    def rate(self) -> float:
        """Tokens a second with every stage busy all the time, each on its own requests: the slowest stage sets it."""
        return self.tokens / max(self.stages)

    def price(self, ranks: int, hour: float) -> float:
        """Return the cost of a million tokens, if a device costs `hour` an hour."""
        return ranks * hour / 3600 / self.rate * 1e6


def pace(bill: Bill, split: Split, phase: str, device: Device) -> Pace:
    """Return the best pace of a phase on these ranks."""
    return Pace(tokens(bill, phase), tuple(rank.seconds(phase, device) for rank in ranks(bill, split)))


def most_held(bill: Bill, split: Split, context: int, batch: int, weights: list[int] | None = None) -> int:
    """Return the bytes of weights and cache on the fullest rank, for `batch` requests of `context` tokens. weights: `weights_held`."""
    other = replace(bill, setting=replace(bill.setting, context=context, batch=batch))
    each = weights_held(bill, split) if weights is None else weights
    return max(own + int(rank.cache()) for own, rank in zip(each, ranks(other, split), strict=True))


def weights_held(bill: Bill, split: Split) -> list[int]:
    """Return the bytes of a rank's weights for each stage, whatever its requests are."""
    return [int(rank.weights()) for rank in ranks(bill, split)]


def largest_batch(bill: Bill, split: Split, device: Device) -> int | None:
    """Return the number of requests at the bill's context whose parts fit on every rank; None if any does."""
    own = weights_held(bill, split)
    return largest(lambda n: most_held(bill, split, bill.setting.context, n, own) <= device.memory, MOST)


def longest_context(bill: Bill, split: Split, device: Device) -> int | None:
    """Return the longest context at the bill's batch whose parts fit on every rank; None if any does."""
    own = weights_held(bill, split)
    return largest(lambda n: most_held(bill, split, n, bill.setting.batch, own) <= device.memory, bill.config.positions or MOST)


def requests(bill: Bill, split: Split) -> int:
    """Return how many of the batch's requests one rank serves."""
    return ceil(bill.setting.batch / max(1, split.ep // split.tp))


def part(attn: AnyAttention, row: int, split: Split) -> int:
    """Return how many bytes of a row of a layer's cache are on one rank: a latent is on each."""
    return attn.on_rank(row, kept(attn.kv_heads or 1, split.tp))


def here(bill: Bill, path: str, times: int, bounds: tuple[int, int]) -> int:
    """Return how many of a path's copies the stage with these layers has."""
    start, end = bounds
    reads = len(bill.config.encoder or ())
    match = PLACE.fullmatch(path)
    if match is None:
        return int(any(start <= n < end for n in neighbours(bill.config, path)))
    before = reads if match["stack"] == "decoder." else 0
    inside = sum(start <= n + before < end for n in bill.reduced.kind(match).numbers)
    return inside if times == bill.reduced.kind(match).count else min(inside, times)  # what layers share, each stage has once


def neighbours(cfg: Config, path: str) -> set[int]:
    """Return the layers next to a module outside of layers: a table is before a stack's first layer, a norm or head after its last."""
    reads, last = len(cfg.encoder or ()), len(stack(cfg)) - 1
    ends = re.match(r"((?:encoder|decoder)\.)?(norm|head|transform|narrow|pooler)(?:\.|$)", path)
    if path.startswith("encoder."):
        return {reads - 1 if ends else 0}
    if ends:
        return {last}
    if path != "embed.weight":
        return {reads}
    return {0, reads, last} if cfg.tied and cfg.head else {0, reads}


def kept(groups: int, ranks: int) -> int:
    """Return the groups of keys and values on a rank: at least one, so ranks share a group if there are more ranks than groups."""
    return max(1, groups // ranks)


def on_every_rank(bill: Bill, path: str) -> bool:
    """True for what stands in attention's place and has no heads that attend, and for what a block reads beside its rows."""
    match = PLACE.fullmatch(path)
    if match is not None and match["rest"].split(".")[1:2] == ["input"]:
        return True
    attn = bill.mixer(path) if match is not None else None
    return match is not None and attn is not None and not attn.heads and match["rest"].split(".")[1:2] == [attn.part]


def shard(bill: Bill, c: Counted, split: Split) -> tuple[int, ...]:
    """Return a weight's shape on one rank, by the letters of its axes."""
    if c.weight.dims is None or on_every_rank(bill, c.path):
        return c.weight.shape
    out = []
    whole_experts = split.holders > 1 and c.part == "experts"  # an expert is on one rank
    for axis, n in zip(parse(c.weight.dims), c.weight.shape, strict=True):
        letters = {x for factor in axis for x in factor}
        by = next((split.holders if LETTERS[x] == "ep" else split.tp for x in LETTERS if x in letters), 1)
        if c.part == "router" or (whole_experts and "E" not in letters):
            by = 1  # every rank routes its own tokens
        if "G" in letters:
            layer = bill.layer(c.path)
            attn = layer.cross if c.part == "cross" else layer.attn
            assert attn is not None and attn.kv_heads is not None
            out.append(n // attn.kv_heads * kept(attn.kv_heads, split.tp))
        else:
            out.append(ceil(n / by))
    return tuple(out)


def sent(bill: Bill, split: Split, phase: str, bounds: tuple[int, int]) -> Iterator[tuple[str, Number]]:
    """Yield the bytes that one rank of a stage sends in a step, by the formulas of a ring (n ranks, X = B·T·D·b).

    Each rank has its part of the logits' vocabulary; the rows that are sampled from are gathered, one a request.
    """
    s, cfg, (start, end) = bill.setting, bill.config, bounds
    layers, reads, size = stack(cfg), len(cfg.encoder or ()), int(BYTES[s.activations])
    row = requests(bill, split) * cfg.width * size
    source = row * (s.source or s.context) if reads and phase == "prefill" else 0
    own = row * (1 if phase == "decode" or reads else s.context)
    rows = [source] * reads + [own] * len(cfg.layers)  # X of every layer
    sums, chosen = Counter[int](), Counter[int]()
    for i in range(start, end):
        sums[rows[i]] += summed(layers[i], split) + (split.tp > 1 and i in (0, reads))  # one after a table, whose rows are split as well
        chosen[rows[i] // split.tp] += layers[i].ffn.chosen
    messages = {}
    if (n := max(split.tp, split.experts)) > 1:
        messages["all_reduce"] = ring(2 * (n - 1), n, "sums·X", sums)
    if (n := split.ep) > 1:
        messages["all_to_all"] = ring(2 * (n - 1), n, "ΣA·X/tp", chosen)
    if end < len(layers):
        messages["pipeline"] = Number(source + own * (end > reads), "X")
    elif (n := split.tp) > 1 and cfg.head:
        logit_rows = requests(bill, split) * (s.context if cfg.bidirectional else 1)
        messages["logits"] = ring(n - 1, n, "B·V·b", {logit_rows * size: cfg.vocab})
    messages = {name: number for name, number in messages.items() if number.value}
    yield from messages.items()
    if messages:
        yield "total", total((name, 1, number) for name, number in messages.items())


def ring(passes: int, ranks: int, symbols: str, summands: Mapping[int, int]) -> Number:
    """Return what each rank of a ring sends of {bytes: times}: (n − 1)/n of them to gather, twice as much to add up."""
    nonzero = {x: n for x, n in summands.items() if n * x}
    filled = " + ".join(f"{n:,}·{x:,}" for x, n in nonzero.items())
    twice = "2·" if passes == 2 * (ranks - 1) else ""
    value = passes * sum(n * x for x, n in nonzero.items()) // ranks
    return Number(value, f"{twice}(n−1)/n·{symbols}", f"{twice}{ranks - 1}/{ranks}·" + (f"({filled})" if len(nonzero) > 1 else filled))


def summed(one: Layer, split: Split) -> int:
    """Return the number of sums over ranks in a layer: after its own attention, cross-attention, and each split feed-forward part.

    Routed and shared experts are summed each for itself, as are two parts that read x at once: a trace has what either made. What stands in
    attention's place is whole on every rank. Where ranks share experts alone, only their outputs are summed.
    """
    if split.tp == 1:
        return int(split.experts > 1 and one.ffn.experts > 0)
    routed = one.ffn.width > 0 and (split.ep == 1 or not one.ffn.experts)
    return (one.attn.heads > 0) + routed + (one.ffn.experts > 0 and one.ffn.shared > 0) + (one.cross is not None)
