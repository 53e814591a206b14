"""A model over several ranks: which part of each weight a rank holds, and how parts and records become the model's again.

The part follows from the weight's axes: it is split along the axis of a letter that `counting.ranks` splits by tensor ranks.

    q  (H K) D  -> rows of its heads      o  D (H K)  -> their columns      up  F D  -> rows of its neurons      q_norm  K  -> all of it
    embed  V D  -> rows of the vocabulary, the last rank's fewer            what stands in attention's place -> all of it
    up  E F D, of a mixture  -> each expert's neurons, or with expert ranks the matrices of its experts; a router is on every rank

A weight inside of each head, such as q_norm's, is on every rank and used for the rank's own heads: its gradient is summed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from pellucid.axes import parse
from pellucid.config import AnyAttention, AnyFfn, Config
from pellucid.counting.ranks import LETTERS
from pellucid.counting.training_ranks import used_in_part
from pellucid.counting.weights import axes_of
from pellucid.distributed import ALONE, Ranks
from pellucid.errors import UseError
from pellucid.nn.adapted import AdaptedLinear, SummedAdaptedLinear
from pellucid.nn.linear import Embedding, Linear, SummedLinear, VocabularyEmbedding, VocabularyLinear
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops.blocks import Blocks
from pellucid.watching.records import Seen

SPLIT = {letter for letter, by in LETTERS.items() if by == "tp"}
ENDS = ("embed", "head")
HEADS, EXPERTS = "heads", "experts"
"""What a part's ranks share: its heads or neurons, or its experts."""


@dataclass(frozen=True)
class Sharding:
    """The parts of a model's weights on its ranks. Where no ranks share a model every weight is its own only part.

    axes: by path the axis along which a weight is split.  sizes: of these axes in the model.  partial: paths of weights whose gradients
    are summed over the ranks of a model.  parts: what is split of each module that can be, by path: HEADS, EXPERTS, or "" for nothing.
    rows: by path the rows of a rank's part that are shared out over data ranks.
    """

    ranks: Ranks = ALONE
    axes: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def divided(self) -> bool:
        """True if a rank lacks a part of some weight."""
        return bool(self.axes or self.rows)

    def part(self, path: str, t: Tensor) -> Tensor:
        """Return this rank's part of a weight, or of a tensor of its shape."""
        if path in self.axes and t.ndim:
            begin, end = self.ranks.bounds(self.sizes[path])
            t = t.narrow(self.axes[path], begin, end - begin)
        if path in self.rows and t.ndim:
            begin, end = self.ranks.row_bounds(self.rows[path])
            t = t[begin:end]
        return t

    def joined(self, path: str, t: Tensor) -> Tensor:
        """Return the weight that the ranks' parts `t` make, or a tensor of its shape, on every rank."""
        t = plain(t)
        if path in self.rows and t.ndim:
            t = self.ranks.gather_shards(t, self.rows[path])
        if path in self.axes and t.ndim:
            t = self.ranks.gather(t, self.axes[path], self.sizes[path])
        return t

    def divides_matrices(self, path: str, ndim: int) -> bool:
        """True if ranks have parts of this matrix, or of each of a stack; False also where they have whole ones of a stack."""
        rows = ndim == 2 and path in self.rows
        return rows or self.axes.get(path, -1) >= ndim - 2

    def fill(self, model: nn.Module, from_: nn.Module) -> None:
        """Give `model`, whose weights are not split, the values of `from_`, whose weights are."""
        with torch.no_grad():
            for (path, p), q in zip(from_.named_parameters(), model.parameters(), strict=True):
                q.copy_(self.joined(path, p))
            for b, c in zip(from_.buffers(), model.buffers(), strict=True):
                c.copy_(b)

    def sum_gradients(self, trained: Mapping[str, Tensor]) -> None:
        """Add to each gradient those of the other ranks: of other documents, and of other heads that used the same weight.

        trained: by path what has the gradients.
        """
        if self.partial:
            self.ranks.sum_gradients((trained[path] for path in self.partial if path in trained), self.ranks.model_group)
        if self.ranks.data > 1:
            self.ranks.sum_gradients((p for path, p in trained.items() if path not in self.rows), self.ranks.data_group)
        if self.rows and self.ranks.copies_group is not None:  # those of the ranks that share a copy were summed as they came
            self.ranks.sum_gradients((p for path, p in trained.items() if path in self.rows), self.ranks.copies_group)

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the norm of the gradients of a complete model, of which this rank has its part, in float64."""
        squares = torch.zeros(2, 2, dtype=torch.float64)
        for path, gradient in gradients.items():
            squares[int(path in self.rows), int(path in self.axes)] += gradient.double().square().sum().cpu()
        of_rows = self.ranks.add_up(squares[1], self.ranks.shard_group) if self.rows else squares[1]
        once, parts = squares[0] + of_rows
        if self.ranks.sharing > 1:
            parts = self.ranks.add_up(parts[None], self.ranks.model_group)[0]
        norm: Tensor = (once + parts).sqrt()
        return norm

    def clip(self, model: nn.Module, most: float) -> float:
        """Scale the gradients so that their norm is `most` at most. Returns the norm that they had."""
        if self.ranks.sharing == 1:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            factor = (most / (norm + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_
            if float(factor) != 1.0:
                torch._foreach_mul_(gradients, factor)
            return float(norm)
        return self.scale({path: p.grad for path, p in model.named_parameters() if p.grad is not None}, most)

    def scale(self, gradients: Mapping[str, Tensor], most: float) -> float:
        """Clip this rank's part of the gradients by the norm of all of them. Returns the norm."""
        norm = self.norm(gradients)
        factor = (most / (norm + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_
        for gradient in gradients.values():
            gradient.mul_(factor.to(gradient.dtype))
        return float(norm)


UNSPLIT = Sharding()


def plain(t: Tensor) -> Tensor:
    """Return this rank's rows of a weight that is shared out over data ranks, or of its gradient; another tensor as it is."""
    own: Tensor = t.to_local() if hasattr(t, "to_local") else t
    return own


def split(model: Decoder | EncoderDecoder, ranks: Ranks, dtype: torch.dtype | None = None) -> Sharding:
    """Leave a model this rank's part of its weights, in its place. A UseError for a model that cannot be split so.

    dtype: in which it computes with weights that are shared out over data ranks, by default theirs.
    """
    sharding = Sharding(ranks) if ranks.sharing == 1 else split_model(model, ranks)
    if ranks.shard == 1:
        return sharding
    from pellucid.data_shards import share_out  # with torch's FSDP2, which a single process does not need

    if any(isinstance(p, Blocks) for p in model.parameters()):
        raise UseError("ranks.part", part="quant", over=f"shard={ranks.shard}")
    return replace(sharding, rows=share_out(model, ranks, dtype))


def split_model(model: Decoder | EncoderDecoder, ranks: Ranks) -> Sharding:
    """Leave a model this rank's heads, neurons, experts and rows of the vocabulary, in its place."""
    check(model, ranks)
    modules = {path: m for path, m in model.named_modules() if getattr(m, "ranks", None) is ALONE}  # a part says that it can be split
    parts = {path: shared_of(m, ranks) for path, m in modules.items()}
    axes, sizes, partial = dict[str, int](), dict[str, int](), list[str]()
    for path, p in model.named_parameters():
        shared = HEADS if path.partition(".")[0] in ENDS and ranks.tensor > 1 else around(path, parts)
        dims = axes_of(model, path, p.ndim) if shared else None
        if dims is None:
            continue
        if (axis := axis_of(dims) if shared == HEADS else expert_axis(path, dims, modules)) is not None:
            axes[path], sizes[path] = axis, p.shape[axis]
        elif used_in_part(path, dims, shared == EXPERTS):
            partial.append(path)
    # the A of a matrix whose rows are split is used for a rank's own rows of B
    partial += [path for path, _ in model.named_parameters() if axes.get(path.replace(".lora_a.", ".lora_b.")) == 0 and path not in axes]
    sharding = Sharding(ranks, axes, sizes, tuple(partial), parts)
    for path, p in model.named_parameters():
        p.data = sharding.part(path, p.data).clone()
    for path, part in modules.items():
        if parts[path]:
            place(part, ranks.of_experts() if parts[path] == EXPERTS else ranks)
    if ranks.tensor > 1:
        become(model.embed, VocabularyEmbedding, ranks, model.config.vocab)
        if model.head is not None:
            become(model.head, VocabularyLinear, ranks, model.config.vocab)
    return sharding


def shared_of(part: nn.Module, ranks: Ranks) -> str:
    """Return what these ranks share of a part that can be split: HEADS, EXPERTS, or "" for nothing."""
    if ranks.expert > 1 and getattr(part, "shares_experts", False):
        return EXPERTS
    return HEADS if ranks.tensor > 1 else ""


def around(path: str, parts: Mapping[str, str]) -> str:
    """Return what is shared of the innermost part that has this path; "" outside of any."""
    inside = max((part for part in parts if path.startswith(f"{part}.")), key=len, default=None)
    return "" if inside is None else parts[inside]


def expert_axis(path: str, dims: str, modules: Mapping[str, nn.Module]) -> int | None:
    """Return the axis of a mixture's own weight that counts experts; None for its router and factors of shares, which every rank has."""
    return 0 if path.rpartition(".")[0] in modules and parse(dims)[0] == (("E",),) and dims != "E" else None


def place(part: nn.Module, ranks: Ranks) -> None:
    """Put a part on ranks, in its place: what leaves it is summed over them."""
    vars(part)["ranks"] = ranks
    for name in ("o", "down"):
        linear = getattr(part, name, None)
        if isinstance(linear, AdaptedLinear):
            become(linear, SummedAdaptedLinear, ranks)
            for addition in linear.additions():
                become(addition.lora_a, SummedLinear, ranks)
        elif isinstance(linear, Linear):
            become(linear, SummedLinear, ranks)
    if (alibi := getattr(part, "alibi", None)) is not None:
        begin, end = ranks.bounds(len(alibi.slopes))
        vars(part)["alibi"] = replace(alibi, slopes=alibi.slopes[begin:end])


def become(module: nn.Module, kind: type[nn.Module], ranks: Ranks, rows: int = 0) -> None:
    """Make a Linear or an Embedding the same one split over ranks, in its place."""
    assert type(module) in (Linear, AdaptedLinear, Embedding)
    module.__class__ = kind
    vars(module).update({"ranks": ranks, "rows": rows} if rows else {"ranks": ranks})


def axis_of(dims: str) -> int | None:
    """Return the axis of a label that is split: "D (H K)" -> 1. None if there is none."""
    return next((i for i, axis in enumerate(parse(dims)) if any(x in SPLIT for factor in axis for x in factor)), None)


def check(model: Decoder | EncoderDecoder, ranks: Ranks) -> None:
    """Raise a UseError for the first part of a model that cannot be split over these ranks."""
    over = f"tensor={ranks.tensor}" if ranks.tensor > 1 else f"expert={ranks.expert}"
    if any(isinstance(p, Blocks) for p in model.parameters()):
        raise UseError("ranks.part", part="quant", over=over)
    if ranks.tensor > 1 and isinstance(model.head, AdaptedLinear):
        raise UseError("ranks.part", part="head.adapters", over=over)
    if ranks.expert > 1 and not any(getattr(spec, "experts", 0) for spec in specs(model.config)):
        raise UseError("ranks.experts", over=f"expert={ranks.expert}")
    for spec in specs(model.config):
        for size, what, by in counts(spec, ranks):
            if size % ranks.sharing:
                raise UseError("ranks.split", size=size, what=what, over=by)
        if ranks.tensor > 1 and (obstacle := next((name for name in ("qk_joint", "index") if getattr(spec, name, None)), None)):
            raise UseError("ranks.part", part=obstacle, over=over)
    if any(layer.ranks for layer in (*(model.config.encoder or ()), *model.config.layers)):
        raise UseError("ranks.part", part="low_rank", over=over)


def specs(cfg: Config) -> Iterator[AnyAttention | AnyFfn]:
    """Yield the specs of a model's parts."""
    for layer in (*(cfg.encoder or ()), *cfg.layers):
        yield from (spec for spec in (*layer.mixers, layer.cross, layer.ffn) if spec is not None)


def counts(spec: AnyAttention | AnyFfn, ranks: Ranks) -> Iterator[tuple[int, str, str]]:
    """Yield what ranks share of a part, with its name and the ranks. Nothing of what stands in attention's place, which every rank has."""
    experts = getattr(spec, "experts", 0) if ranks.expert > 1 else 0
    if experts:
        yield experts, "experts", f"expert={ranks.expert}"
    for name in ("heads", "kv_heads", "shared") + (("width",) if not (hasattr(spec, "heads") or experts) else ()):
        if ranks.tensor > 1 and (size := getattr(spec, name, None)):
            yield int(size), {"width": "neurons", "shared": "shared neurons"}.get(name, name), f"tensor={ranks.tensor}"


def gathered_records(seen: list[Seen], sharding: Sharding) -> list[Seen]:
    """Return the records of one rank's forward as one rank alone would have made them: with all heads and neurons, and their FLOPs.

    Every rank calls it with the same records. Rows of experts that each rank has a part of are summed; those of complete experts follow
    one another by rank, since they are sorted by expert.
    """
    if not sharding.axes:
        return seen
    ranks, split_up, out = sharding.ranks, list[bool](), list[Seen]()
    for s in seen:
        shared, value, rows = around(s.path, sharding.parts), s.value, s.rows
        axis, routed = axis_of(s.dims) if shared == HEADS else None, shared == EXPERTS and s.dims.startswith("N ")
        if axis is not None:
            value = ranks.gather(value, axis, value.shape[axis] * ranks.sharing)
        elif shared == HEADS and s.dims == "N D" and s.path.endswith(".down"):
            value = ranks.add_up(value.clone(), ranks.model_group)
        elif routed:
            value, rows = ranks.gather_rows(value), None if rows is None else ranks.gather_rows(rows)
        split_up.append(axis is not None or routed or any(path in sharding.axes for path in s.weights))
        out.append(replace(s, value=value, shape=tuple(value.shape), rows=rows))
    own = [s.flops or 0 for s, part in zip(seen, split_up, strict=True) if part]
    summed = iter(ranks.add_up(torch.tensor(own), ranks.model_group).tolist())
    flops = [next(summed) if part else s.flops for s, part in zip(seen, split_up, strict=True)]
    return [replace(s, flops=None if s.flops is None else n) for s, n in zip(out, flops, strict=True)]
