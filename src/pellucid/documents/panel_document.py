"""A panel of an exhibit, or of a training run, as JSON."""

from typing import Annotated, Literal, TypedDict

from pellucid.documents.definition import Count, Path
from pellucid.documents.number import finite
from pellucid.documents.run import CandidateDocument, candidate_of
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
    TensorPlace,
)


class SideDocument(TypedDict):
    """One run of a panel of answers."""

    about: str
    candidates: list[CandidateDocument]


class AnswerPanelDocument(TypedDict):
    """The likeliest next tokens of several runs."""

    kind: Literal["answers"]
    title: str
    sides: list[SideDocument]


class TensorPlaceDocument(TypedDict):
    """The tensor that a cell of a table speaks of."""

    row: Count
    column: Count
    path: Path
    cell: Annotated[list[Count], "its index in the tensor; none: the whole tensor"]
    run: Annotated[Count, "of the exhibit's runs"]


class TablePanelDocument(TypedDict):
    """A table."""

    kind: Literal["table"]
    title: str
    columns: list[str]
    rows: list[list[str | float | None]]
    marked: Annotated[Count | None, "the row that the title speaks of"]
    exhibits: Annotated[Count | None, "the column whose cells name exhibits"]
    tinted: Annotated[list[Count], "columns whose numbers are coloured on one scale"]
    places: Annotated[list[TensorPlaceDocument], "of cells that speak of a tensor"]


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
    cell: Annotated[list[Count | Literal["row", "column"]], "a number's index in the tensor; none: it is of no cell"]
    run: Annotated[Count, "of the exhibit's runs"]
    axes: Annotated[list[str], "what the rows are, and what the columns; none: their names say it"]


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


def panel(p: Panel) -> PanelDocument:
    """Return a panel."""
    if isinstance(p, AnswerPanel):
        sides: list[SideDocument] = [{"about": about, "candidates": [candidate_of(c.piece, c) for c in own]} for about, own in p.sides]
        return {"kind": "answers", "title": p.title, "sides": sides}
    if isinstance(p, TablePanel):
        rows = [[finite(v) if isinstance(v, float) else v for v in row] for row in p.rows]
        return {
            "kind": "table",
            "title": p.title,
            "columns": [*p.columns],
            "rows": rows,
            "marked": p.marked,
            "exhibits": p.exhibits,
            "tinted": [*p.tinted],
            "places": [tensor_place(at, one) for at, one in p.places.items()],
        }
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
            "cell": [*p.cell],
            "run": p.run,
            "axes": [*p.axes],
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


def tensor_place(at: tuple[int, int], one: TensorPlace) -> TensorPlaceDocument:
    """Return the tensor that a table's cell speaks of. at: its row and column."""
    return {"row": at[0], "column": at[1], "path": one.path, "cell": [*one.cell], "run": one.run}


def point(p: Point) -> PointDocument:
    """Return a point of a plane."""
    return {"name": p.name, "x": finite(p.x), "y": finite(p.y), "moved": None if p.moved is None else [*p.moved]}


def node(n: NetworkNode) -> NodeDocument:
    """Return a node of a network."""
    return {"name": n.name, "value": finite(n.value)}


def box(b: Box) -> BoxDocument:
    """Return a box of a diagram."""
    return {"name": b.name, "note": b.note, "depth": b.depth, "marked": b.marked}
