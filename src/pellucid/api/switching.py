"""The fields of a Config by their paths, and a Config that differs in some of them.

    switched(cfg, {"layers.*.attn.scale": 1.0, "norm": "none"})
    switched(cfg, {"layers.0.attn.rope.theta": "500000"})        # a text is read by the field's type

A path names a field as `config.py` does; `*` stands for any part of it. What a field may hold follows from its annotation, from the parts
that exist under a name, and from the fields beside it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass, replace
from dataclasses import fields as fields_of
from fnmatch import fnmatchcase
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from pellucid.catalog.literal import hints
from pellucid.config import Config, Layer, Rope, Yarn
from pellucid.errors import UseError, nearest
from pellucid.nn.block import ORDERS
from pellucid.nn.norm import GATED_NORMS, NORMS
from pellucid.ops.gate import ACTS
from pellucid.ops.kinds import plain
from pellucid.ops.latent import FORMS

FIXED = {"context", "starts", "keys", "input"}  # how a model is used, which is no part of what it computes; and what layers share
CHOICES: dict[str, tuple[str, ...]] = {
    "norm": tuple(NORMS), "order": tuple(ORDERS), "act": (*ACTS, "clamped"), "transform": tuple(ACTS), "affinity": ("sigmoid", "softmax"),
    "form": FORMS, "gated_norm": tuple(GATED_NORMS),
}  # fmt: skip
FROM_0 = {"shared", "offset"}  # whole numbers that may be 0; all others begin with 1
MOST = 2**31 - 1
FAR = 2**20  # of a bucket's reach: kernels hold a number for each distance
ABOVE_0 = {"theta", "factor", "cap", "clip", "logit_cap", "low", "high"}
OF_CROSS = {"heads", "kv_heads", "width", "bias", "out_bias", "scale"}  # all that attention to an encoder's rows has
OF_KEYS = {"v_from_k", "v_rms", "key_factor"}  # what has no effect without keys of one's own
BESIDE_KEYS = {"clip", "norm_turned", "qk_rms", "temper", "distances", "gated", "gated_heads"}  # what queries alone cannot have
OF_HEAD = {"logit_scale", "logit_factor", "logit_cap", "head_bias", "transform", "transform_bias", "tied"}
TEXTS = {"on": True, "true": True, "off": False, "false": False}
Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Field:
    """A field of a Config. path: "layers.0.attn.scale".  owner: the spec that has it.  kinds: the types of its annotation."""

    path: str
    owner: Any
    kinds: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def specs(self) -> tuple[type, ...]:
        """Return the specs that it may hold."""
        return tuple(k for k in self.kinds if isinstance(k, type) and is_dataclass(k))

    def new(self) -> Any:
        """Return the spec that "on" stands for: the one that is there, or else the one kind there is with its defaults.

        Rotary positions are as wide as a head. None if the field cannot be off, or several specs may be meant.
        """
        if NoneType not in self.kinds:
            return None
        if is_dataclass(own := getattr(self.owner, self.name)) or len(self.specs) != 1:
            return own if is_dataclass(own) else None
        (kind,) = self.specs
        if kind is Rope:
            return Rope(self.owner.width) if isinstance(getattr(self.owner, "width", None), int) else None
        needed = [f for f in fields_of(kind) if f.default is MISSING]
        return None if needed else kind()


def members(hint: Any) -> tuple[Any, ...]:
    """Return the types of an annotation, those of a union one by one."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def fields(spec: Any, prefix: str = "") -> Iterator[Field]:
    """Yield the fields of a Config that a switch may name, and those of its layers and their specs; a tuple itself is none."""
    kind: type = type(spec)
    for name, hint in hints(kind).items():
        value, path, kinds = getattr(spec, name), prefix + name, members(hint)
        if any(get_origin(k) is tuple for k in kinds):
            for i, layer in enumerate(value or ()):
                yield from fields(layer, f"{path}.{i}.") if isinstance(layer, Layer) else ()
        elif name not in FIXED and acts(spec, prefix, name):
            yield Field(path, spec, kinds)
            if is_dataclass(value):
                yield from fields(value, f"{path}.")


def acts(spec: Any, prefix: str, name: str) -> bool:
    """True if a field has an effect where it stands: a switch that has none is refused as unknown, and is not ignored."""
    if prefix.endswith(".cross."):
        return name in OF_CROSS
    if getattr(spec, "keys", "own") == "shared" and name in OF_KEYS | BESIDE_KEYS:
        return False
    if isinstance(spec, Config) and name == "prefix":
        return spec.encoder is None and not spec.bidirectional
    if isinstance(spec, Config):
        return (spec.head or name not in OF_HEAD) and (name != "offset" or spec.positions is not None)
    return True


def switched(cfg: Config, switches: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    """Return a Config with the switches applied one by one, and their values as they were read.

    A UseError for a path that names no field, and for a value that the field, or the fields beside it, cannot have.
    """
    before, values = cfg, dict[str, Any]()
    for name, given in switches.items():
        known = {f.path: f for f in fields(cfg)}
        matched = [f for path, f in known.items() if fnmatchcase(path, str(name))]
        if not matched:
            raise UseError("variant.field", name=name, near=nearest(str(name), dict.fromkeys([*general(known), *known])))
        for f in matched:
            value = read(f, given)
            values[name] = True if value is not None and value == f.new() else value
            cfg = put(cfg, f.path.split("."), value)
    owners = {f.path: f.owner for f in fields(before)}
    for f in fields(cfg):
        if owners.get(f.path) != f.owner:
            check(f)
    check_shared_keys(cfg)
    return cfg, values


def check_shared_keys(cfg: Config) -> None:
    """Raise a UseError if an attention that reads the keys of an earlier layer has none that would fit, see Attention.keys."""
    kept = dict[int | None, tuple[Any, ...]]()  # by the most positions that a query sees
    for n, layer in enumerate(cfg.layers):
        a: Any = layer.attn
        if a.keys == "own":
            continue
        form, most = (a.window, a.chunk, a.width, a.kv_heads), min(filter(None, (a.window, a.chunk)), default=None)
        if a.keys == "kept":
            kept[most] = form
        elif kept.get(most) != form:
            kind = f"window {written(a.window)}, chunk {written(a.chunk)}, {a.kv_heads} × {a.width}"
            raise UseError("variant.keys", name=f"layers.{n}.attn", found=kind)


def general(paths: Mapping[str, object]) -> Iterator[str]:
    """Yield paths with "*" for the number of a layer."""
    for path in paths:
        yield ".".join("*" if word.isdigit() else word for word in path.split("."))


def put(spec: Spec, words: list[str], value: Any) -> Spec:
    """Return `spec` with the field at the path `words` set."""
    name, *rest = words
    own: Any = getattr(spec, name)
    if isinstance(own, tuple):
        at = int(rest[0])
        value = (*own[:at], put(own[at], rest[1:], value), *own[at + 1 :])
    elif rest:
        value = put(own, rest, value)
    return replace(spec, **{name: value})  # type: ignore[type-var]


def read(f: Field, given: Any) -> Any:
    """Return a value of the field's type: a text by what it says, True or "on" as a spec with its defaults. A UseError for any other."""
    fitting = [value for value in meanings(given, f) if fits(f, value)]
    if not fitting:
        raise refusal(f, given)
    return fitting[0]


def meanings(given: Any, f: Field) -> Iterator[Any]:
    """Yield what a value may mean, the nearest first: as it is, and a text also as a number, as on or off, as none."""
    yield given
    if isinstance(given, str):
        for number in (int, float):
            try:
                yield number(given)
            except ValueError:
                continue
        yield from (TEXTS[given.lower()],) if given.lower() in TEXTS else ()
        yield from (None,) if given.lower() in ("none", "off") else ()
        given = TEXTS.get(given.lower(), given)
    if type(given) is int:
        yield float(given)
    if given is False:
        yield None
    if given is True and (made := f.new()) is not None:
        yield made


def fits(f: Field, value: Any) -> bool:
    """True if a value is of one of the field's types, and in its range or among its names."""
    if value is None:
        return NoneType in f.kinds
    if type(value) not in f.kinds:
        return False
    if isinstance(value, str):
        return value in CHOICES.get(f.name, ())
    if isinstance(value, float):
        return math.isfinite(value) and (value > 0 if f.name in ABOVE_0 else value >= 0 if f.name.endswith("eps") else True)
    return not isinstance(value, int) or isinstance(value, bool) or (f.name not in FROM_0) <= value <= MOST


def refusal(f: Field, value: Any, allowed: str = "") -> UseError:
    """Return the error of a value that the field cannot have."""
    return UseError("variant.value", name=f.path, found=written(value), allowed=allowed or "; ".join(kinds_written(f)))


def kinds_written(f: Field) -> Iterator[str]:
    """Yield what a field may hold, as it is written: none, on, off, the type and range of a number, names, specs."""
    yield from ("none",) if NoneType in f.kinds else ()
    yield from ("on",) if f.new() is not None else ()
    yield from ("on", "off") if bool in f.kinds else ()
    yield from (f"{int(f.name not in FROM_0)} … {MOST}",) if int in f.kinds else ()
    yield from ("float" + (" > 0" if f.name in ABOVE_0 else " ≥ 0" if f.name.endswith("eps") else ""),) if float in f.kinds else ()
    yield from CHOICES.get(f.name, ()) if str in f.kinds else ()
    yield from (f"pellucid.config.{kind.__name__}" for kind in f.specs)


def written(value: Any) -> str:
    """Write a value as a switch does: none, on, off, 1, 0.5, a name."""
    words = {None: "none", True: "on", False: "off"}
    if value is None or isinstance(value, bool):
        return words[value]
    return plain(value) if isinstance(value, float | str) else str(value)


def divisors(n: int) -> str:
    """Write the numbers that divide n: pairs of one up to its root and one beyond, as n may be any number."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return ", ".join(map(str, sorted({*low, *(n // d for d in low)})))


# What a field may hold beside the others of its spec: {field: (what is wrong, what is allowed)}, both of the spec.
BESIDE: dict[str, tuple[Callable[[Any], bool], Callable[[Any], str]]] = {
    "head": (lambda m: m.encoder is not None and not m.head, lambda m: "on"),
    "pooler": (lambda m: m.pooler and (m.head or m.encoder is not None), lambda m: "off"),
    "reach": (lambda b: not exact(b) < b.reach <= FAR, lambda b: f"{exact(b) + 1} … {FAR}"),
    "kv_heads": (lambda a: a.heads % a.kv_heads != 0, lambda a: divisors(a.heads)),
    "rope": (lambda a: a.rope is not None and odd(a.rope.width, a), lambda a: f"2, 4 … {reach(a)}"),
    "theta": (lambda r: r.theta == 1 and isinstance(r.scaling, Yarn), lambda r: "float > 0, not 1"),  # YaRN divides by its logarithm
    "groups": (lambda m: shared_out(m) % m.groups != 0, lambda m: divisors(shared_out(m))),
    "least": (lambda m: least_of_all(m) > most_of_all(m), lambda m: f"0 … {plain(most_of_all(m))}"),
    "most": (lambda m: least_of_all(m) > most_of_all(m), lambda m: f"≥ {plain(float(m.least))}"),
    "groups_chosen": (lambda m: m.groups_chosen > m.groups, lambda m: f"1 … {m.groups}"),
    "group_best": (lambda m: m.groups > 1 and m.group_best > m.experts // m.groups, lambda m: f"1 … {m.experts // m.groups}"),
    "chosen": (lambda m: hasattr(m, "experts") and m.chosen > in_reach(m), lambda m: f"1 … {in_reach(m)}"),
    "act": (lambda m: m.act == "clamped" and not getattr(m, "gated", False), lambda m: ", ".join(ACTS)),
    "order": (
        lambda one: one.order not in orders(one),
        lambda one: ", ".join(orders(one)),
    ),
}


def orders(one: Any) -> list[str]:
    """Return the orders that a layer may have: of a part alone, or of two side by side, before it; of cross attention no parallel one."""
    if not one.ffn.width or one.second is not None:
        return ["pre"]
    if one.input is not None:
        return ["sandwich, scaled"]
    return [o for o in ORDERS if one.cross is None or not o.startswith("parallel")]


def shared_out(spec: Any) -> int:
    """Return the number of experts, or of heads with a state, that groups share out."""
    return int(getattr(spec, "experts", 0) or spec.state_heads)


def least_of_all(spec: Any) -> float:
    """Return the lower limit of a step in time; 0 of a spec without limits."""
    return float(spec.least) if hasattr(spec, "most") else 0.0


def most_of_all(spec: Any) -> float:
    """Return the upper limit of a step in time; infinite without one."""
    most = getattr(spec, "most", None)
    return math.inf if most is None else float(most)


def reach(attn: Any) -> int:
    """Return the most channels of a head that can turn; those of a latent's rotary key are its own."""
    return int(getattr(attn, "width", attn.rope.width))


def odd(width: int, attn: Any) -> bool:
    """True if channels cannot be turned in pairs within a head."""
    return width % 2 != 0 or width > reach(attn)


def exact(buckets: Any) -> int:
    """Return the number of distances that have a bucket each."""
    return int(buckets.count // (4 if buckets.bidirectional else 2))


def in_reach(moe: Any) -> int:
    """Return the number of experts in the chosen groups."""
    return int(moe.groups_chosen * (moe.experts // moe.groups))


def check(f: Field) -> None:
    """Raise a UseError if a field has a value out of its range, or one that contradicts those beside it."""
    value = getattr(f.owner, f.name)
    if not fits(f, value):
        raise refusal(f, value)
    wrong, allowed = BESIDE.get(f.name, (None, None))
    if wrong is not None and allowed is not None and wrong(f.owner):
        raise refusal(f, value.width if isinstance(value, Rope) else value, allowed(f.owner))
