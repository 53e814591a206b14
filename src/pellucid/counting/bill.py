"""The bill of a model: every count under its own path, each with its formula.

bill["parameters.total"], bill["parameters.layers.0.attn.q.weight"], bill["cache.bytes_per_token"].formula, bill["flops.decode"]
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from pellucid.config import MIXERS, AnyAttention, Config, Index, Layer
from pellucid.counting import summary
from pellucid.counting.distinct import PLACE, Distinct, LayerKind
from pellucid.counting.number import Number
from pellucid.counting.weights import Weight
from pellucid.errors import UseError, nearest

BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Setting:
    """The setting of a count. context: tokens read before.  batch: requests at once.  source: tokens that an encoder reads.

    weights, cache, activations: names of dtypes.  device: a name of the catalogue, or None.
    kv: "int8" if keys and values are held in int8, with a scale for each head and token in the dtype `cache` (see ops.held).
    """

    context: int = 4096
    batch: int = 1
    source: int | None = None
    weights: str = "bfloat16"
    cache: str = "bfloat16"
    activations: str = "bfloat16"
    device: str | None = None
    kv: str | None = None


@dataclass(frozen=True)
class Counted:
    """One weight. times: how many layers have one like it.  active: the share of it that is active for one token.

    form: its block type in a mix of GGUF files, "" outside one and for what stays float32.
    """

    weight: Weight
    path: str
    times: int
    active: Fraction = Fraction(1)
    form: str = ""

    @cached_property
    def part(self) -> str:
        return part_of(self.path, self.active)


@dataclass(repr=False)
class Bill:
    """The numbers of a model by path. An unknown path is a UseError with the nearest ones.

    reduced, doubled: the model with one layer of each kind, and with two.
    notes: sentences about what is counted, if it is not the published model.
    """

    model: str
    family: str
    config: Config
    setting: Setting
    reduced: Distinct
    doubled: Distinct
    weights: list[Counted] = field(default_factory=list)
    numbers: dict[str, Number] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return summary.line(self.model, self.family, self.setting, self.numbers)

    def __str__(self) -> str:
        return summary.text(repr(self), self.numbers)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the main numbers, each with its formula."""
        return summary.html(repr(self), self.numbers, self.notes)

    def __getitem__(self, path: str) -> Number:
        if path not in self.numbers:
            raise UseError("count.path", path=path, near=nearest(path, self.numbers))
        return self.numbers[path]

    def __contains__(self, path: str) -> bool:
        return path in self.numbers

    def below(self, path: str) -> Iterator[tuple[str, Number]]:
        """Yield the numbers below a path, by their names under it."""
        for name, number in self.numbers.items():
            if name.startswith(f"{path}."):
                yield name.removeprefix(f"{path}."), number

    def layers(self) -> Iterator[tuple[LayerKind, Layer]]:
        """Yield every kind of layer with its Layer."""
        for kind in self.reduced.kinds:
            stack = self.config.encoder if kind.stack == "encoder." else self.config.layers
            assert stack is not None
            yield kind, stack[kind.first]

    def layer(self, path: str) -> Layer:
        """Return the Layer that contains a path."""
        match = PLACE.fullmatch(path)
        assert match is not None
        stack = self.config.encoder if match["stack"] == "encoder." else self.config.layers
        assert stack is not None
        return stack[int(match["number"])]

    def viewer(self, path: str) -> Layer:
        """Return the layer of the attention at `path`. An indexer scores every key, so its own view is not limited by its choice."""
        layer, mixer = self.layer(path), self.mixer(path)
        return replace(layer, attn=mixer.without_index() if path.endswith(".indexer") else mixer)

    def stored(self, path: str) -> tuple[str, ...]:
        """Return the letters of what the part at `path` stores of a token, one text for each tensor."""
        return Index.stored if path.endswith(".indexer") else self.mixer(path).stored

    def mixer(self, path: str) -> AnyAttention:
        """Return the spec of what mixes rows at `path`, of the block's first where the path names none."""
        layer, names = self.layer(path), path.split(".")
        return next((one for one in layer.mixers if one.part in names), layer.attn)


def reads_others(bill: Bill, path: str) -> bool:
    """True if `path` is the attention of a layer that reads the keys and values of another one."""
    return path.endswith(".attn") and PLACE.fullmatch(path) is not None and bill.mixer(path).keys == "shared"


def part_of(path: str, active: Fraction) -> str:
    """Return the part that a weight belongs to.

    embed, positions, attn or what stands in its place, cross, input, table (of what a block reads beside its rows), ffn, experts, shared,
    router, norms or head. A block's own factor is of its norms.
    """
    parts = path.split(".")
    owner = parts[-2] if len(parts) > 1 else parts[0]
    if owner == "norm" or owner.endswith("_norm"):
        return "norms"
    if "layers" not in parts:
        return parts[1] if parts[0] in ("encoder", "decoder") else parts[0]
    inner = parts[parts.index("layers") + 2 :]
    if len(inner) == 1:
        return "norms"
    if inner[0] in (*MIXERS, "cross"):
        return inner[0]
    if inner[0] == "input":
        return "table" if inner[1] == "table" else "input"
    if active != 1:
        return "experts"
    return {"router": "router", "correction": "router", "expert_scale": "router", "shared": "shared", "shared_gate": "shared"}.get(
        inner[1], "ffn"
    )


def pairs(layer: Layer, rows: int, before: int, bidirectional: bool = False) -> int:
    """Return the number of (query, key) pairs that a layer's mask leaves, for `rows` new tokens after `before`."""
    if bidirectional and layer.attn.fill is None and (window := layer.attn.limits[0]) is not None:  # on both sides
        n = min(window, rows) - 1
        return rows * (2 * n + 1) - n * (n + 1)
    if bidirectional or layer.attn.fill is not None:  # with a fill hidden keys have a share too
        return rows * (before + rows)
    most, chunk = layer.attn.limits

    def first(n: int) -> int:
        """Return the pairs among the first n tokens of a chunk."""
        full = n if most is None else min(n, most)  # rows whose view is not yet cut off
        return full * (full + 1) // 2 + (n - full) * full

    def until(n: int) -> int:
        chunks, rest = (0, n) if chunk is None else divmod(n, chunk)
        return chunks * first(chunk or 0) + first(rest)

    return until(before + rows) - until(before)


def share_seen(layer: Layer, rows: int, before: int, bidirectional: bool = False) -> Fraction:
    """Return the share of a layer's products of rows and keys that its mask leaves; all of a convolution's, which makes no others."""
    return Fraction(pairs(layer, rows, before, bidirectional), rows * (before + rows)) if layer.attn.heads else Fraction(1)


def grouped(counted: Iterable[Counted], key: Callable[[Counted], str]) -> dict[str, list[Counted]]:
    """Return the weights by key, in the order in which keys first come."""
    out: dict[str, list[Counted]] = {}
    for c in counted:
        out.setdefault(key(c), []).append(c)
    return out
