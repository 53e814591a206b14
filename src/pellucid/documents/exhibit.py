"""An exhibit as JSON: what is often said, what is so, its panels, claims and runs, in the reader's language."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypedDict

from pellucid.analysis.rerun import lines
from pellucid.documents.definition import Count, Path
from pellucid.documents.number import count, finite, number
from pellucid.documents.run import CandidateDocument, candidate_of
from pellucid.exhibits import CHAPTERS, find
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, ExhibitResult
from pellucid.exhibits.panel import (
    AnswerPanel,
    BarPanel,
    Box,
    CubePanel,
    DiagramPanel,
    LinePanel,
    MatrixPanel,
    NetworkNode,
    NetworkPanel,
    Panel,
    PlanePanel,
    Point,
    TablePanel,
)
from pellucid.messages import say

SCHEMA: Final = 1


class SideDocument(TypedDict):
    """One run of a panel of answers."""

    about: str
    candidates: list[CandidateDocument]


class AnswerPanelDocument(TypedDict):
    """The likeliest next tokens of several runs."""

    kind: Literal["answers"]
    title: str
    sides: list[SideDocument]


class TablePanelDocument(TypedDict):
    """A table."""

    kind: Literal["table"]
    title: str
    columns: list[str]
    rows: list[list[str | float | None]]
    marked: Annotated[Count | None, "the row that the title speaks of"]
    exhibits: Annotated[Count | None, "the column whose cells name exhibits"]


class BarDocument(TypedDict):
    """One bar."""

    name: str
    value: float | None


class BarPanelDocument(TypedDict):
    """Numbers as bars, drawn from 0."""

    kind: Literal["bars"]
    title: str
    bars: list[BarDocument]
    unit: str
    most: Annotated[float | None, "of a full bar; null: the largest"]


class SeriesDocument(TypedDict):
    """One line of a panel of lines."""

    name: str
    values: list[float | None]


class LinePanelDocument(TypedDict):
    """Numbers along an axis."""

    kind: Literal["lines"]
    title: str
    across: str
    at: list[str | float]
    series: list[SeriesDocument]
    marked: Annotated[float | None, "a value of the axis that the panels beside it show"]


class MatrixPanelDocument(TypedDict):
    """Cells of one tensor, or of a difference."""

    kind: Literal["matrix"]
    title: str
    rows: list[str]
    columns: list[str]
    values: Annotated[list[list[float | None]], "null: hidden"]
    path: Annotated[Path | None, "of the tensor; null: of several"]
    scale: Literal["share", "signed", "size"]


class CubePanelDocument(TypedDict):
    """A tensor of three axes."""

    kind: Literal["cube"]
    title: str
    axes: Annotated[list[str], "names of the three axes"]
    values: list[list[list[float | None]]]
    path: Annotated[Path | None, "of the tensor"]


class PointDocument(TypedDict):
    """A point of a plane."""

    name: str
    x: float | None
    y: float | None
    moved: Annotated[list[float] | None, "where an arrow from it ends"]


class PlanePanelDocument(TypedDict):
    """Points of a plane."""

    kind: Literal["plane"]
    title: str
    across: str
    up: str
    points: list[PointDocument]


class BoxDocument(TypedDict):
    """A box of a diagram."""

    name: str
    note: str
    depth: Annotated[Count, "how deep it lies"]
    marked: bool


class StackDocument(TypedDict):
    """Boxes, read from above."""

    about: str
    boxes: list[BoxDocument]


class DiagramPanelDocument(TypedDict):
    """Stacks of boxes side by side."""

    kind: Literal["diagram"]
    title: str
    stacks: list[StackDocument]


class NodeDocument(TypedDict):
    """A node of a network."""

    name: str
    value: float | None


class NodeColumnDocument(TypedDict):
    """Nodes that stand in one column."""

    about: str
    nodes: list[NodeDocument]


class NetworkPanelDocument(TypedDict):
    """Columns of nodes, each linked to every one of the next column."""

    kind: Literal["network"]
    title: str
    columns: list[NodeColumnDocument]
    weights: Annotated[list[list[list[float | None]]], "of each column but the last: a row for each node, a number for each of the next"]


class TextPanelDocument(TypedDict):
    """Lines of text."""

    kind: Literal["text"]
    title: str
    lines: list[str]


PanelDocument = (
    AnswerPanelDocument
    | TablePanelDocument
    | BarPanelDocument
    | LinePanelDocument
    | MatrixPanelDocument
    | CubePanelDocument
    | PlanePanelDocument
    | DiagramPanelDocument
    | NetworkPanelDocument
    | TextPanelDocument
)


class ClaimDocument(TypedDict):
    """A claim, its numbers as the sentence has them, and whether it holds."""

    key: str
    text: str
    numbers: dict[str, str | float | None]
    holds: bool


class ControlDocument(TypedDict):
    """What a visitor may set."""

    name: str
    title: str
    value: str | float
    options: Annotated[list[str | float], "all that it may be; none: any"]


class ExhibitRunDocument(TypedDict):
    """A run behind an exhibit, as it can be made again."""

    model: str
    prompt: str
    switches: list[str]
    changes: list[str]
    steps: Count
    dtype: str


class ExhibitHeadDocument(TypedDict):
    """An exhibit before it is run."""

    name: str
    chapter: str
    title: str
    said: Annotated[str, "what is often said"]
    true: Annotated[str, "what is so"]
    model: Annotated[str, "its specimen"]
    controls: list[ControlDocument]


class ExhibitListDocument(TypedDict):
    """Every exhibit, chapter by chapter."""

    schema: Literal[1]
    chapters: Annotated[dict[str, str], "titles"]
    exhibits: list[ExhibitHeadDocument]


class ExhibitDocument(TypedDict):
    """An exhibit as it was run."""

    schema: Literal[1]
    head: ExhibitHeadDocument
    model: str
    panels: list[PanelDocument]
    claims: list[ClaimDocument]
    runs: list[ExhibitRunDocument]
    python: Annotated[list[str], "lines that make the runs again"]


def exhibit_list() -> ExhibitListDocument:
    """Return every exhibit with its texts; none is run."""
    heads = [head(find(name), {}) for names in CHAPTERS.values() for name in names]
    return {"schema": SCHEMA, "chapters": {chapter: say(f"exhibit.chapter.{chapter}") for chapter in CHAPTERS}, "exhibits": heads}


def exhibit_document(shown: ExhibitResult) -> ExhibitDocument:
    """Return an exhibit that was run, with its texts."""
    name = shown.exhibit.name
    return {
        "schema": SCHEMA,
        "head": head(shown.exhibit, shown.settings),
        "model": shown.model,
        "panels": [panel(p) for p in shown.panels],
        "claims": [claim(name, c) for c in shown.claims],
        "runs": [
            {
                "model": r.model,
                "prompt": str(r.prompt),
                "switches": [*r.switches],
                "changes": [*r.changes],
                "steps": r.steps,
                "dtype": r.dtype,
            }
            for r in shown.runs
        ],
        "python": list(lines(shown.runs)),
    }


def head(shown: Exhibit, settings: Mapping[str, str | float]) -> ExhibitHeadDocument:
    """Return the texts and controls of an exhibit. settings: values that differ from the controls' own."""
    name = shown.name
    return {
        "name": name,
        "chapter": next(chapter for chapter, names in CHAPTERS.items() if name in names),
        "title": say(f"exhibit.{name}.title"),
        "said": say(f"exhibit.{name}.said"),
        "true": say(f"exhibit.{name}.true"),
        "model": shown.model,
        "controls": [control(name, c, settings.get(c.name, c.value)) for c in shown.controls],
    }


def control(name: str, c: Control, value: str | float) -> ControlDocument:
    """Return a control of the exhibit `name` with its value."""
    return {"name": c.name, "title": say(f"exhibit.{name}.control.{c.name}"), "value": value, "options": [*c.options]}


def claim(name: str, c: Claim) -> ClaimDocument:
    """Return a claim of the exhibit `name` as a sentence."""
    shown = {k: shown_value(v) for k, v in c.numbers.items()}
    numbers: dict[str, str | float | None] = {k: v if isinstance(v, str) else finite(v) for k, v in c.numbers.items()}
    return {"key": c.key, "text": say(f"exhibit.{name}.claim.{c.key}", **shown), "numbers": numbers, "holds": c.holds}


def shown_value(value: str | float | None) -> str:
    """Write a value of a claim or a table: a text as it is, a count with its thousands apart, nothing for None."""
    return "" if value is None else value if isinstance(value, str) else count(value) if isinstance(value, int) else number(value)


def panel(p: Panel) -> PanelDocument:
    """Return a panel."""
    if isinstance(p, AnswerPanel):
        sides: list[SideDocument] = [{"about": about, "candidates": [candidate_of(c.piece, c) for c in own]} for about, own in p.sides]
        return {"kind": "answers", "title": p.title, "sides": sides}
    if isinstance(p, TablePanel):
        rows = [[finite(v) if isinstance(v, float) else v for v in row] for row in p.rows]
        return {"kind": "table", "title": p.title, "columns": [*p.columns], "rows": rows, "marked": p.marked, "exhibits": p.exhibits}
    if isinstance(p, BarPanel):
        bars: list[BarDocument] = [{"name": name, "value": finite(v)} for name, v in p.bars.items()]
        return {"kind": "bars", "title": p.title, "bars": bars, "unit": p.unit, "most": p.most}
    if isinstance(p, LinePanel):
        series: list[SeriesDocument] = [{"name": name, "values": [finite(v) for v in own]} for name, own in p.series.items()]
        return {"kind": "lines", "title": p.title, "across": p.across, "at": [*p.at], "series": series, "marked": p.marked}
    if isinstance(p, MatrixPanel):
        values = [[finite(v) for v in row] for row in p.values]
        path = p.path or None
        return {
            "kind": "matrix",
            "title": p.title,
            "rows": [*p.rows],
            "columns": [*p.columns],
            "values": values,
            "path": path,
            "scale": p.scale,
        }
    if isinstance(p, CubePanel):
        cube = [[[finite(v) for v in row] for row in one] for one in p.values]
        return {"kind": "cube", "title": p.title, "axes": [*p.axes], "values": cube, "path": p.path or None}
    if isinstance(p, PlanePanel):
        return {"kind": "plane", "title": p.title, "across": p.across, "up": p.up, "points": [point(one) for one in p.points]}
    if isinstance(p, DiagramPanel):
        stacks: list[StackDocument] = [{"about": about, "boxes": [box(b) for b in boxes]} for about, boxes in p.stacks.items()]
        return {"kind": "diagram", "title": p.title, "stacks": stacks}
    if isinstance(p, NetworkPanel):
        columns: list[NodeColumnDocument] = [{"about": about, "nodes": [node(n) for n in nodes]} for about, nodes in p.columns.items()]
        weights = [[[finite(w) for w in row] for row in between] for between in p.weights]
        return {"kind": "network", "title": p.title, "columns": columns, "weights": weights}
    return {"kind": "text", "title": p.title, "lines": [*p.lines]}


def point(p: Point) -> PointDocument:
    """Return a point of a plane."""
    return {"name": p.name, "x": finite(p.x), "y": finite(p.y), "moved": None if p.moved is None else [*p.moved]}


def node(n: NetworkNode) -> NodeDocument:
    """Return a node of a network."""
    return {"name": n.name, "value": finite(n.value)}


def box(b: Box) -> BoxDocument:
    """Return a box of a diagram."""
    return {"name": b.name, "note": b.note, "depth": b.depth, "marked": b.marked}
