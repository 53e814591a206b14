"""The memory of a training step, with its products: weights, gradients, moments, and the activations kept for the backward.

Activations are what autograd itself saves in a forward on meta, each storage once, without weights; with recompute, each layer keeps its
input only, and one layer at a time keeps the rest.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.counting.bill import BYTES, Bill
from pellucid.counting.distinct import PLACE, Distinct
from pellucid.counting.flash import Flash
from pellucid.counting.meta_run import meta_model
from pellucid.counting.number import Number, product, total
from pellucid.counting.ranks import Split
from pellucid.counting.training_adapters import Dora, adapt, adapters
from pellucid.counting.training_extra import NOTHING, PIECE, Extra, MomentBytes, at_least, loss, passing
from pellucid.counting.training_modules import MODULE, attach, is_block, look_ahead, numbers
from pellucid.counting.training_peak import working
from pellucid.counting.training_ranks import ONE, TrainingGrid, of_rank
from pellucid.counting.training_share import divide, own_numbers
from pellucid.counting.training_work import work
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.watching.meta import META


@dataclass(frozen=True)
class Way:
    """How to train. rank: of LoRA on every matrix of the layers, or None for all weights.  shards: ranks that share weights, gradients
    and moments.  master: True for a float32 copy of the weights beside bfloat16 ones.  summed: gradients of several forwards are added, in
    float32, or in float64 where all of a run is.  packed: texts lie end to end in one row, each with its own attention, whose results are
    joined.  extra: what the objective takes in addition, and what its loss holds.

    copied: states are saved beside the steps, from a copy of weights and moments.
    single: the numbers of which the optimizer keeps one moment, as Muon does of its matrices, and not two.
    adapted: of LoRA on some matrices, their paths within a layer; low: the numbers in all A and B then. What these keep for the backward is
    counted in each layer of a kind.  dropout: they have it.  dora: what DoRA adds, None for plain ones.
    split: of a model whose weights all train over ranks that have as much of it each; bytes are then a rank's, products all ranks'.
    data: ranks that add up the gradients of a step, each with a copy of its own.
    """

    rank: int | None = None
    recompute: bool = False
    shards: int = 1
    master: bool = True
    summed: bool = False
    packed: bool = False
    extra: Extra = NOTHING
    copied: bool = False
    single: int = 0
    adapted: tuple[str, ...] | None = None
    low: int | None = None
    dropout: bool = False
    dora: Dora | None = None
    split: Split = ONE
    data: int = 1

    @property
    def adds(self) -> bool:
        """True if a gradient is added to that of another forward or rank, in float32 or wider."""
        return self.summed or max(self.split.ranks, self.data) > 1


def training(bill: Bill, way: Way = Way()) -> dict[str, Number]:
    """Return the bytes and products of one training step on a batch of texts as long as the context, by name."""
    return memory(bill, way) | work(bill, way)


def memory(bill: Bill, way: Way) -> dict[str, Number]:
    """Return the bytes of a rank: memory.weights, memory.gradients, ... memory.total."""
    size, kinds = int(BYTES[bill.setting.activations]), lasting_of(bill, way)
    kinds |= dict(way.extra.lasting)
    kept = activations(bill, way)
    out = {f"memory.{n}": x for n, x in kinds.items()}
    out["memory.activations"] = total(recomputed(bill, kept) if way.recompute else kept)
    out["memory.loss"] = loss(bill, way.extra, size)
    moments = {
        "at_loss": at_loss(bill, out, way, kept),
        "at_backward": at_backward(bill, way, kinds, kept),
        **at_embedding(bill, way, kinds),
        "at_update": at_update(bill, way, kinds),
        **{one.name: at_extra(kinds, one, way) for one in way.extra.moments},
    }
    out |= {f"memory.{name}": n for name, n in moments.items()}
    name, most = max(moments.items(), key=lambda item: item[1].value)
    out["memory.total"] = Number(most.value, name, "", (f"memory.{name}",))
    return out


def lasting_of(bill: Bill, way: Way) -> dict[str, Number]:
    """Return the bytes that a rank holds of weights, gradients and what the optimizer keeps, by name."""
    size, ahead = int(BYTES[bill.setting.activations]), numbers(bill.config, way.extra.modules)
    every, n = int(bill["parameters.total"]) + ahead, "(N + M)" if ahead else "N"  # M: of modules for multi-token prediction
    trained, of = (every, n) if way.rank is None else (adapted_numbers(bill, way), "A" if way.dora is None else "(A + m)")
    if way.split.ranks > 1:
        own = of_rank(bill, TrainingGrid(way.split, muon=way.single > 0), at_least(size), size)
        kinds: dict[str, Number] = {name: own[name] for name in ("weights", "gradients", "moments", "master") if name in own}
        if way.copied:  # own numbers are as many bytes as their gradients
            kinds["copy"] = total((name, 1, own[name]) for name in ("gradients", "moments"))
        return shared_out(kinds, way.shards)
    # frozen ones lie as they are stored; blocks of a few bits take no gradient, so they are trained as activations are
    weights = "bytes.dequantised" if way.rank is None and "bytes.dequantised" in bill else "bytes.total"
    wide = at_least(size)
    kinds = {"weights": Number(int(bill[weights]) + ahead * size, f"{weights} + M·{size}" if ahead else weights)}
    if way.rank is not None:
        kinds["adapters"] = product(f"{of}·{wide}", trained=trained, wide=wide)
    each = size if way.rank is None and not way.adds else wide
    kinds["gradients"] = product(f"{of}·{each}", trained=trained, each=each)
    kinds["moments"] = product(f"2·{of}·{wide}", two=2, trained=trained, wide=wide)  # AdamW's two, arXiv 1711.05101
    if way.single:
        kinds["moments"] = Number(
            wide * (2 * trained - way.single), f"2·{of}·{wide} − M·{wide}", f"2·{trained:,}·{wide} − {way.single:,}·{wide}"
        )
    if way.master and size < 4 and way.rank is None:
        kinds["master"] = product(f"{n}·4", every=every, four=4)
    if way.copied:
        kinds["copy"] = total([(f"{wide}·numbers", 1, Number(wide * trained)), ("moments", 1, kinds["moments"])])
    return shared_out(kinds, way.shards)


def shared_out(kinds: Mapping[str, Number], shards: int) -> dict[str, Number]:
    """Return what one of the ranks has that share these bytes."""
    return dict(kinds) if shards == 1 else {n: Number(-(-int(x) // shards), f"⌈{x.symbols} / {shards}⌉") for n, x in kinds.items()}


def adapted_numbers(bill: Bill, way: Way) -> int:
    """Return the numbers that train in adapters: LoRA's, and DoRA's magnitudes."""
    return adapters(bill, way.rank or 0, way.low) + (0 if way.dora is None else way.dora.magnitudes)


def at_extra(kinds: Mapping[str, Number], one: MomentBytes, way: Way) -> Number:
    """Return the bytes held at a moment beside the step's own. Before the first step there are neither moments nor gradients, and weights
    that will be narrow, with a master copy, are as wide as that.
    """
    names = ("master" if "master" in kinds else "weights", "adapters", "teacher")
    always = [entry for entry in lasting(kinds) if not one.first or entry[0] in names]
    gradients = [("gradients", 1, kinds["gradients"])] if way.summed and one.name == "at_teacher" else []
    return total([*always, *gradients, ("extra", 1, one.bytes)])


def lasting(kinds: Mapping[str, Number]) -> list[tuple[str, int, Number]]:
    """Return what a step holds all the time: all but the gradients."""
    return [(name, 1, n) for name, n in kinds.items() if name != "gradients"]


def at_loss(bill: Bill, cost: Mapping[str, Number], way: Way, kept: list[tuple[str, int, Number]]) -> Number:
    """Return the bytes held when the logits have a gradient. Weights have theirs only where several forwards add up.

    With recompute no layer's own tensors exist then.
    """
    names = [n.removeprefix("memory.") for n in cost if n != "memory.gradients" or way.summed]
    parts = {name: cost[f"memory.{name}"] for name in names}
    if way.recompute:
        parts["activations"] = total(entry for entry in recomputed(bill, kept) if entry[0] != "largest")
    return total((name, 1, n) for name, n in parts.items())


def at_backward(bill: Bill, way: Way, kinds: Mapping[str, Number], kept: list[tuple[str, int, Number]]) -> Number:
    """Return the most bytes held in a layer's backward pass: what layers up to it keep, and the gradients of those behind it.

    Behind the layers is the head, whose pass needs the logits' gradient.
    """
    s, size = bill.setting, int(BYTES[bill.setting.activations])
    row = s.batch * s.context * bill.config.width * size
    of_layer = {path: int(n) for path, _, n in kept}
    needs, layers = working_of(bill, way), list[tuple[bool, int, str, int]]()
    for kind in bill.reduced.kinds:
        first, second = f"{kind.stack}layers.{kind.first}", f"{kind.stack}layers.{kind.numbers[:2][-1]}"
        alike = of_layer.get(second, of_layer[first])  # what each later one of the kind keeps
        layers += [(kind.stack.startswith("decoder"), i, first, of_layer[first] if i == kind.first else alike) for i in kind.numbers]
    order = [(path, own) for *_, path, own in sorted(layers)]
    gradients = gradients_of(bill, way, int(kinds["gradients"]))
    behind, before = gradients.get("", 0), of_layer["outside"] + sum(own for _, own in order)
    if way.recompute:
        before = of_layer["outside"] + row * len(order)
    logits = s.batch * s.context * bill.config.vocab * size
    most = {"kept": before, "gradients": int(kinds["gradients"]) if way.summed else behind, "working": logits + row}
    if way.extra.modules:  # the last module's block comes first, with all logits
        again = of_layer["multi_token.0.block"]
        of_modules = sum(n for path, n in of_layer.items() if path.startswith("multi_token."))
        of_modules += way.extra.modules * (row - again) + again if way.recompute else 0
        tables, block = (1 + way.extra.modules) * logits, needs[last_kind(bill)]
        most = {"kept": before + of_modules, "gradients": int(kinds["gradients"]) if way.summed else 0, "working": tables + block}
    for path, own in reversed(order):
        again = own if way.recompute else 0
        bytes_of = {"kept": before + again, "gradients": int(kinds["gradients"]) if way.summed else behind, "working": needs[path] + row}
        if sum(bytes_of.values()) > sum(most.values()):
            most = bytes_of
        before, behind = before - (row if way.recompute else own), behind + gradients.get(path, 0)
    return total([*lasting(kinds), *((name, 1, Number(n)) for name, n in most.items())])


def at_embedding(bill: Bill, way: Way, kinds: Mapping[str, Number]) -> dict[str, Number]:
    """Return the bytes held as the backward pass ends, at the table of tokens, by the moment's name; nothing if its gradient comes at once.

    Where the head or a second place reads it too, they are what is known of its gradient, what this place adds, and their sum; where
    several forwards add up, all of that beside theirs.
    """
    table = max((own_numbers(bill, c, way.split) for c in bill.weights if c.weight.parameter and c.path.startswith("embed")), default=0)
    copies = 2 * (bill.config.tied or bill.config.encoder is not None or way.extra.modules > 0) + way.adds
    if not copies or way.rank is not None:
        return {}
    size = int(BYTES[bill.setting.activations])
    temporary = Number(copies * table * size, f"{copies}·table·{size}", f"{copies}·{table:,}·{size}")
    return {"at_embedding": total([*lasting(kinds), ("gradients", 1, kinds["gradients"]), ("temporary", 1, temporary)])}


def gradients_of(bill: Bill, way: Way, every: int) -> dict[str, int]:
    """Return the bytes of one layer's gradients by its kind's path, and under "" those of what is behind the layers. every: of all."""
    if way.rank is not None:  # adapters, which are small, so all of them count from the first layer on
        return {"": every}
    of = dict[str, int]()
    for c in bill.weights:
        path = PLACE.fullmatch(c.path)
        if c.weight.parameter and (path or bill.config.tied or not c.path.startswith("embed")):
            name = f"{path['stack']}layers.{path['number']}" if path else ""
            of[name] = of.get(name, 0) + own_numbers(bill, c, way.split)
    ahead = numbers(bill.config, way.extra.modules)
    of[""] = of.get("", 0) + ahead
    own = int(bill["parameters.total"])
    if way.split.ranks > 1:
        own = sum(c.times * own_numbers(bill, c, way.split) for c in bill.weights if c.weight.parameter)
    return {name: n * every // (own + ahead) for name, n in of.items()}


def at_update(bill: Bill, way: Way, kinds: Mapping[str, Number]) -> Number:
    """Return the bytes held while the largest weight changes: a piece of its size in float32, for Muon two of all of it, and where one
    gradient is widened that.
    """
    wide = at_least(int(BYTES[bill.setting.activations]))
    narrow = way.rank is None and not way.adds and BYTES[bill.setting.activations] < wide
    largest = max(own_numbers(bill, c, way.split) for c in bill.weights) if way.rank is None else 0
    piece, copies = (0, 2 + narrow) if way.single else (min(PIECE, largest), int(narrow))
    temporary = Number(
        (copies * largest + piece) * wide, f"({copies}·largest + piece)·{wide}", f"({copies}·{largest:,} + {piece:,})·{wide}"
    )
    return total([*lasting(kinds), ("gradients", 1, kinds["gradients"]), ("temporary", 1, temporary)])


def recomputed(bill: Bill, kept: list[tuple[str, int, Number]]) -> list[tuple[str, int, Number]]:
    """Return the input of every layer, the rest of the largest one, and what is outside of layers."""
    inside = [(times, n) for path, times, n in kept if is_block(path)]
    s = bill.setting
    one = product("B·T·D·b", batch=s.batch, rows=s.context, width=bill.config.width, each=int(BYTES[s.activations]))
    largest = max((n for _, n in inside), key=float, default=Number(0))
    rest = [entry for entry in kept if not is_block(entry[0])]
    return [("inputs", sum(times for times, _ in inside), one), ("largest", 1, largest), *rest]


def activations(bill: Bill, way: Way = Way()) -> list[tuple[str, int, Number]]:
    """Return (layer or "outside", times, bytes that autograd keeps) of an ordinary forward with gradients.

    Two layers of each kind run: with a frozen table the very first layer's input has no gradient, so it keeps less.
    """
    reduced, model, tokens, source = on_meta(bill, way)
    if way.extra.modules:
        assert isinstance(model, Decoder)
        attach(model, bill.config, way.extra.modules, model.embed.weight.dtype)
    by_layer = kept(model, tokens, source, way.packed)
    out = [(path, 1, Number(n)) for path, n in by_layer.items() if path.startswith("multi_token.")]
    for kind in reduced.kinds:
        first, *again = (by_layer.get(f"{kind.stack}layers.{i}", 0) for i in kind.built)
        if again in ([], [first]):
            out.append((f"{kind.stack}layers.{kind.first}", kind.count, Number(first)))
        else:
            out.append((f"{kind.stack}layers.{kind.first}", 1, Number(first)))
            out.append((f"{kind.stack}layers.{kind.numbers[1]}", kind.count - 1, Number(again[0])))
    return [*out, ("outside", 1, Number(by_layer.get("", 0)))]


def on_meta(bill: Bill, way: Way) -> tuple[Distinct, Decoder | EncoderDecoder, Tensor, Tensor]:
    """Return the config with two layers of each kind, its model on meta, of which what trains needs gradients, tokens and a source."""
    s = bill.setting
    reduced = bill.doubled
    model = meta_model(reduced.config, getattr(torch, s.activations))
    if way.rank is None:
        model.requires_grad_(True)
    else:
        adapt(model, way.rank, way.adapted, way.dropout, way.dora is not None)
    divide(model, way.split)
    tokens, source = (torch.zeros(s.batch, n, dtype=torch.long, device=META) for n in (s.context, s.source or s.context))
    return reduced, model, tokens, source


def working_of(bill: Bill, way: Way) -> dict[str, int]:
    """Return the bytes that the backward pass of one layer of each kind needs, by the kind's path."""
    reduced, model, tokens, source = on_meta(bill, way)
    with Flash():
        by_layer = working(model, lambda: forward(model, tokens, source, way.packed))
    return {f"{k.stack}layers.{k.first}": max(by_layer.get(f"{k.stack}layers.{i}", 0) for i in k.built) for k in reduced.kinds}


def forward_bytes(bill: Bill, packed: bool, logits: bool = True) -> int:
    """Return the most bytes that a forward without gradients holds at once, beyond the weights. logits: False for those of one row."""
    _, model, tokens, source = on_meta(bill, Way())
    with Flash():
        return passing(lambda: forward(model, tokens, source, packed, logits))


def forward(model: Decoder | EncoderDecoder, tokens: Tensor, source: Tensor, packed: bool = False, logits: bool = True) -> Tensor:
    """Return the logits of an ordinary forward, or of texts that are packed: a lone one as two, since a row has several of its texts."""
    if isinstance(model, Decoder) and packed:
        count, length = tokens.shape
        lengths = [length] * count if count > 1 else [length - length // 2, length // 2]
        step = Step.packed([n for n in lengths if n], META)
        step.wanted = None if logits else torch.zeros(1, dtype=torch.long, device=META)
        tokens = tokens.reshape(1, -1)
    elif isinstance(model, Decoder):
        step = Step.plain(tokens, mask=prefix(tokens.shape[1]) if model.config.prefix else None)
    else:
        return model(source, tokens)  # type: ignore[no-any-return]
    out: Tensor = model(tokens, step)
    look_ahead(model, tokens, step)
    return out


def kept(model: Decoder | EncoderDecoder, tokens: Tensor, source: Tensor, packed: bool = False) -> dict[str, int]:
    """Return, by layer or "" outside, the bytes of storages that autograd saves in a forward; each once, without parameters."""
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    seen: dict[int, tuple[str, int]] = {}
    alive: list[Tensor] = []  # a storage that is freed could come again under the same address
    where = [""]

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            alive.append(t)
            seen[storage._cdata] = where[-1], storage.nbytes()
        return t

    with Flash(), layers(model, where), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.enable_grad():
        forward(model, tokens, source, packed)
    sums: dict[str, int] = {}
    for path, n in seen.values():
        sums[path] = sums.get(path, 0) + n
    return sums


def last_kind(bill: Bill) -> str:
    """Return the path of the kind that the last layer is of."""
    last = len(bill.config.layers) - 1
    return next(f"{kind.stack}layers.{kind.first}" for kind in bill.reduced.kinds if last in kind.numbers and kind.stack != "encoder.")


@contextmanager
def layers(model: nn.Module, where: list[str]) -> Iterator[None]:
    """Append the path of the running layer to `where`, while the context is open."""
    handles: list[Any] = []
    for path, m in model.named_modules():
        if path.rpartition(".")[0].endswith("layers") or MODULE.fullmatch(path):
            handles.append(m.register_forward_pre_hook(lambda *_, path=path: where.append(path)))
            handles.append(m.register_forward_hook(lambda *_: where.pop() and None))
    try:
        yield
    finally:
        for h in handles:
            h.remove()
