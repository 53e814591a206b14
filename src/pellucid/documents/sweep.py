"""A sweep, and the scores of heads, as JSON."""

from typing import Annotated, Final, Literal, TypedDict

from pellucid.analysis.heads import HeadScores
from pellucid.api.sweep import Sweep
from pellucid.documents.definition import Count, Path
from pellucid.documents.number import finite

SCHEMA: Final = 1


class SweepDocument(TypedDict):
    """One number of a run under each of many changes."""

    schema: Literal[1]
    model: str
    metric: Annotated[str, "name of the number"]
    base: Annotated[float | None, "without a change"]
    clean: Annotated[float | None, "of the run that values are taken from"]
    paths: Annotated[list[Path], "tensors, the first axis of the values"]
    by: Annotated[list[str], "letters of the other axes"]
    shape: list[Count]
    pieces: Annotated[list[str], "of the changed prompt"]
    values: Annotated[list[float | None], "row by row"]


class HeadsDocument(TypedDict):
    """The mean weight that each head gives to four places."""

    schema: Literal[1]
    model: str
    paths: Annotated[list[Path], "of the patterns"]
    scores: Annotated[dict[str, list[list[float]]], "induction, duplicate, previous, first: [layer, head]"]


def sweep_document(s: Sweep, model: str) -> SweepDocument:
    """Return a sweep as JSON."""
    return {
        "schema": SCHEMA, "model": model, "metric": s.metric, "base": finite(s.base), "clean": finite(s.clean), "paths": s.paths,
        "by": list(s.by), "shape": list(s.values.shape), "pieces": s.pieces, "values": [finite(x) for x in s.values.flatten().tolist()],
    }  # fmt: skip


def heads_document(scores: HeadScores, model: str) -> HeadsDocument:
    """Return the scores of heads as JSON."""
    return {"schema": SCHEMA, "model": model, "paths": scores.paths, "scores": {name: x.tolist() for name, x in scores.values.items()}}
