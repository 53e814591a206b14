"""One number of a tensor, taken apart: its factors by name, its summands, their sum, and the number that the model holds.

layers.0.attn.scores[0, 1, 3, 2]   q · k · scale:  0.31·-1.20·0.177 + ... = 2.410
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypedDict

from pellucid.axes import index_of, parse, show
from pellucid.documents.definition import Count, Setting
from pellucid.documents.formula import formula
from pellucid.documents.number import finite
from pellucid.documents.summands import labels, values
from pellucid.errors import UseError
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import Limits
from pellucid.tracing import Trace
from pellucid.watching.records import Seen
from pellucid.watching.terms import Index, Terms

SCHEMA = 1


@dataclass(frozen=True)
class Cell:
    """A cell: its tensor's record, its index, its terms and its value."""

    seen: Seen
    index: Index
    terms: Terms
    value: float

    @property
    def total(self) -> float:
        """Return the sum of the summands, in float64."""
        return self.terms.total()

    @cached_property
    def rows(self) -> list[tuple[list[float], float]]:
        """Return each product with its factors, in order, then each added number with none."""
        columns = [f.tolist() for f in self.terms.factors.values()]
        products = zip(*columns, strict=True) if columns else ()
        factors = [*map(list, products), *([] for _ in self.terms.added)]
        return list(zip(factors, self.terms.summands.tolist(), strict=True))

    @property
    def place(self) -> str:
        """Return the index with its axes: "B 0, H 1, T 3, S 2"."""
        return ", ".join(f"{show(a)} {i}" for a, i in zip(parse(self.seen.dims), self.index, strict=True))


def cell(run: Trace, path: str, index: str) -> Cell:
    """Return the cell at `index` of the first record at `path`. index: see `cell_of`."""
    return cell_of(run.all(path)[0], index)


def cell_of(seen: Seen, index: str) -> Cell:
    """Return the cell of a record. index: "0,1,3,2"; the batch may be left out, and negative numbers count from the end.

    Raises a UseError for an index outside of the tensor, and for a run that was watched without terms=True.
    """
    path = seen.path
    place = index_of(path, seen.dims, seen.shape, index)
    if seen.terms is None and seen.later is not None:  # a large table, whose values are computed on demand
        seen = seen.later()
    if seen.terms is None:
        raise UseError("cell.terms", path=path)
    return Cell(seen, place, seen.terms(place), float(seen.value[place]))


def shortened(count: int, ends: int) -> tuple[range, range]:
    """Return the ranges of summands to show: the first and the last `ends`, or all if that leaves out at most one."""
    if count <= 2 * ends + 1:
        return range(count), range(0)
    return range(ends), range(count - ends, count)


class CellDocument(TypedDict):
    """One number of a tensor, taken apart."""

    path: str
    dims: str
    index: list[Count]
    made: Annotated[str, "its tensor's formula"]
    settings: Annotated[dict[str, Setting], "of the op"]
    factors: Annotated[dict[str, list[float | None]], "columns whose products are summed"]
    added: dict[str, float | None]
    numbers: Annotated[dict[str, float | None], "that a template is filled with, by the names of the op"]
    summands: Annotated[list[float | None], "the products of the factors, and after them what is added"]
    total: Annotated[float | None, "of the summands, in float64"]
    value: Annotated[float | None, "that the model holds"]


def document(c: Cell, dims: Mapping[str, str]) -> CellDocument:
    """Return the cell as JSON. dims: of the run's records, by path."""
    label, s = labels(c.seen, dims), c.seen
    return {
        "path": s.path,
        "dims": s.dims,
        "index": list(c.index),
        "made": formula(s, dims),
        "settings": dict(s.settings),
        "factors": {label(name): [finite(x) for x in f.tolist()] for name, f in c.terms.factors.items()},
        "added": {label(name): finite(x) for name, x in c.terms.added.items()},
        "numbers": {name: finite(x) for name, x in values(c.terms).items()},
        "summands": [finite(x) for x in c.terms.summands.tolist()],
        "total": finite(c.total),
        "value": finite(c.value),
    }


def terms_document(run: Run, seen: Seen, index: str, limits: Limits) -> dict[str, Any]:
    """Return the cell at `index` as JSON, with at most `limits.summands` summands and the sum of all."""
    c = cell_of(seen, index)
    dims = {s.path: s.dims for s in run.trace}
    own, added = document(c, dims), len(c.terms.added)
    most, products = max(limits.summands - added, 0), len(c.terms.summands) - added
    own["factors"] = {name: column[:most] for name, column in own["factors"].items()}
    own["summands"] = [*own["summands"][: min(most, products)], *own["summands"][products:]]
    about = {"op": seen.op, "inputs": list(seen.inputs), "weights": list(seen.weights), "source": seen.source, "error": seen.error}
    return {"schema": SCHEMA, "run": run.id, **own, "count": products + added, **about}
