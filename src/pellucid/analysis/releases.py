"""The catalogue in the order of its releases: when models with experts, and each kind of attention, came."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pellucid import catalog
from pellucid.api.count import described
from pellucid.counting.variants import kinds

UNCONFIRMED = "unconfirmed"  # begins the key of the status of a statement that no maker has made


@dataclass(frozen=True)
class Statement:
    """What is stated of a model without a public architecture. text, status: the claim, and its source, in the user's language.

    unconfirmed: its makers did not say it.
    """

    text: str
    status: str
    unconfirmed: bool


def statements(entry: catalog.Entry) -> list[Statement]:
    """Return what is stated of a model of the catalogue; [] where its configuration is public."""
    pairs = zip(catalog.statements(entry), entry.get("statements", ()), strict=True)
    return [Statement(one["claim"], one["status"], keys["status"].startswith(UNCONFIRMED)) for one, keys in pairs]


@dataclass(frozen=True)
class Release:
    """A model of the catalogue. date: "2024-12".  attention: its kinds, "" if its makers disclosed nothing.  sparse: it has experts.

    stacks: "encoder", "both" or "decoder", "" if its makers disclosed nothing.  statements: about one that they did not disclose.
    """

    name: str
    organisation: str
    date: str
    attention: str
    sparse: bool
    stacks: str
    statements: Sequence[Statement]

    @property
    def year(self) -> str:
        return self.date.partition("-")[0]

    @property
    def month(self) -> str:
        return self.date.partition("-")[2]

    @property
    def disclosed(self) -> bool:
        return bool(self.attention)

    @property
    def unconfirmed(self) -> int:
        """Return the number of statements about it that its makers did not confirm."""
        return sum(one.unconfirmed for one in self.statements)


def years() -> list[str]:
    """Return the years in which models of the catalogue were released."""
    return sorted({entry["released"].partition("-")[0] for entry in catalog.models().values()})


def releases() -> list[Release]:
    """Return every model of the catalogue, the oldest first."""
    out = []
    for entry in catalog.models().values():
        about = statements(entry)
        cfg = None if about else described(entry["id"])[1]
        attention, sparse = ("", False) if cfg is None else (kinds(cfg), any(layer.ffn.experts for layer in cfg.layers))
        stacks = "" if cfg is None else "both" if cfg.encoder is not None else "encoder" if cfg.bidirectional else "decoder"
        out.append(Release(entry["name"], entry["organisation"], entry["released"], attention, sparse, stacks, about))
    return sorted(out, key=lambda one: one.date)


@dataclass(frozen=True)
class Year:
    """The releases of a year."""

    year: str
    models: Sequence[Release]

    @property
    def disclosed(self) -> int:
        """Return the number of models whose configuration is public."""
        return sum(one.disclosed for one in self.models)

    @property
    def sparse(self) -> int:
        """Return the number of models that have experts."""
        return sum(one.sparse for one in self.models)

    @property
    def kinds(self) -> str:
        """Return the kinds of attention with the number of models of each, the commonest first."""
        counts = Counter(one.attention for one in self.models if one.disclosed)
        return ", ".join(f"{kind} {n}" for kind, n in counts.most_common())


def by_year(models: Iterable[Release]) -> list[Year]:
    """Return releases year by year."""
    own: dict[str, list[Release]] = {}
    for one in models:
        own.setdefault(one.year, []).append(one)
    return [Year(year, those) for year, those in own.items()]


def in_columns(models: Sequence[Release], most: int) -> list[Sequence[Release]]:
    """Return releases as columns of one length, but for the last, as few as hold `most` each."""
    count = -(-len(models) // most)
    size = -(-len(models) // count)
    return [models[start : start + size] for start in range(0, len(models), size)]


@dataclass(frozen=True)
class Branch:
    """The models of one year that have the same stacks. first: names of the first ones.  sparse: one of them has experts."""

    year: str
    count: int
    first: Sequence[str]
    sparse: bool


def branches(models: Iterable[Release], stacks: str, most: int) -> list[Branch]:
    """Return the branch of a tree of releases whose models have these stacks, a year each, with at most `most` names."""
    own = by_year(one for one in models if one.stacks == stacks)
    return [Branch(y.year, len(y.models), [m.name for m in y.models[:most]], y.sparse > 0) for y in own]
