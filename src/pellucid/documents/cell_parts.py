"""What a cell is made of: its largest parts, back to embeddings, heads and feed-forward parts (`pellucid.attribution`)."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypedDict

from pellucid.analysis.attribution import Attribution, Share, attribution
from pellucid.analysis.walk_back import PartKey
from pellucid.documents.definition import Constraint, Count, Path
from pellucid.documents.number import finite
from pellucid.messages import say
from pellucid.tracing import Trace

SCHEMA: Final = 1
MOST = 20  # parts of a document; the sum is of all


class OriginDocument(TypedDict):
    """Where a part comes from. A field that says nothing of it is null."""

    path: Path
    row: Annotated[Count | None, "its position in the text"]
    head: Count | None
    source: Annotated[Count | None, "the position that the head reads"]
    expert: Count | None
    neuron: Count | None


class CellPartDocument(TypedDict):
    """A part of a cell."""

    of: Annotated[OriginDocument, "of a score, where the query's part comes from"]
    key: Annotated[OriginDocument | None, "of a score, where the key's part comes from"]
    text: Annotated[str, "both as people read them"]
    value: float | None


class CellPartsDocument(TypedDict):
    """A cell as a sum of parts."""

    schema: Literal[1]
    run: Annotated[str, Constraint(pattern="^([0-9a-f]{32})?$"), "empty: no server keeps the run"]
    path: Path
    index: list[Count]
    value: Annotated[float | None, "that the model has"]
    total: Annotated[float | None, "the sum of all parts"]
    count: Annotated[Count, "all parts"]
    constant: Annotated[list[Literal["norm", "pattern", "gate", "experts"]], "what was taken as constant"]
    notes: Annotated[list[str], "what was taken as constant, as people read it"]
    parts: Annotated[list[CellPartDocument], "the largest, in size"]


def cell_parts(model: Any, trace: Trace, path: str, index: tuple[int, ...], step: int = 0, run: str = "", **how: Any) -> CellPartsDocument:
    """Return the parts of a cell. how: `value` of `attribution`."""
    made: Attribution = attribution(model, trace, step=step, cell=(path, index), **how)
    return {
        "schema": SCHEMA,
        "run": run,
        "path": path,
        "index": list(index),
        "value": finite(made.value),
        "total": finite(made.total),
        "count": len(made.parts) + len(made.rest),
        "constant": list(made.constant),  # type: ignore[arg-type]
        "notes": notes(made.constant),
        "parts": [cell_part(s) for s in made.largest(MOST)],
    }


def cell_part(s: Share) -> CellPartDocument:
    """Return a part."""
    text = worded(s.of) if s.key is None else f"{worded(s.of)} × {worded(s.key)}"
    return {"of": origin(s.of), "key": None if s.key is None else origin(s.key), "text": text, "value": finite(s.value)}


def origin(o: PartKey) -> OriginDocument:
    """Return an origin."""
    return {"path": o.path, "row": o.row, "head": o.head, "source": o.source, "expert": o.expert, "neuron": o.neuron}


def worded(o: PartKey) -> str:
    """Return an origin as people read it: "layers.0.attn, head 2, at 4"."""
    words = [
        "" if o.head is None else say("page.made.parts.head", head=o.head),
        "" if o.expert is None else say("page.made.parts.expert", expert=o.expert),
        "" if o.neuron is None else say("page.made.parts.neuron", neuron=o.neuron),
        "" if o.row is None else say("page.made.parts.row", row=o.row),
        "" if o.source is None else say("page.made.parts.source", source=o.source),
    ]
    return ", ".join([o.path, *filter(None, words)])


def notes(constant: Iterable[str]) -> list[str]:
    """Return what was taken as constant as people read it."""
    texts = {
        "norm": say("page.made.constant.norm"),
        "pattern": say("page.made.constant.pattern"),
        "gate": say("page.made.constant.gate"),
        "experts": say("page.made.constant.experts"),
    }
    return [texts[name] for name in constant]
