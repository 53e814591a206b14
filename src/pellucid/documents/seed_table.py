"""An effect over several seeds as JSON."""

from collections.abc import Sequence
from typing import Annotated, TypedDict

from pellucid.analysis.seed_spread import SeedSpread, SeedValues
from pellucid.documents.definition import Count, Path
from pellucid.documents.number import finite


class SpreadDocument(TypedDict):
    """A number over seeds."""

    mean: float | None
    spread: Annotated[float | None, "standard deviation between seeds"]
    values: Annotated[list[float | None], "of each seed"]


class SeedSpreadDocument(TypedDict):
    """One place of the stream over seeds: of the first runs and the second."""

    path: Path
    difference: Annotated[SpreadDocument | None, "size of the difference over that of the first run's tensor"]
    size: list[SpreadDocument | None]
    likeness: list[SpreadDocument | None]
    gradient: list[SpreadDocument | None]


class SeedsDocument(TypedDict):
    """Two runs compared with the weights of several seeds."""

    seeds: list[Count]
    divergence: SpreadDocument | None
    depth: list[SeedSpreadDocument]


def seed_document(seeds: Sequence[int], depth: Sequence[SeedSpread], divergence: SeedValues | None) -> SeedsDocument:
    """Return the numbers over seeds as JSON."""
    rows: list[SeedSpreadDocument] = [
        {
            "path": one.path,
            "difference": spread_document(one.difference),
            "size": list(map(spread_document, one.size)),
            "likeness": list(map(spread_document, one.likeness)),
            "gradient": list(map(spread_document, one.gradient)),
        }
        for one in depth
    ]
    return {"seeds": list(seeds), "divergence": spread_document(divergence), "depth": rows}


def spread_document(s: SeedValues | None) -> SpreadDocument | None:
    """Return one number over seeds."""
    return None if s is None else {"mean": finite(s.mean), "spread": finite(s.spread), "values": [finite(v) for v in s.values]}
