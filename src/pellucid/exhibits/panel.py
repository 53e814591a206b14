"""Panels of an exhibit: pictures as data, which the terminal, the page and a saved file draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pellucid.analysis.equal_pairs import EqualPair, Reason
from pellucid.messages import say
from pellucid.runs.answers import Candidate
from pellucid.tracing import Trace

Value = str | float | None  # of a table


@dataclass(frozen=True)
class AnswerPanel:
    """The likeliest next tokens of several runs, side by side. sides: (what a run is, its candidates)."""

    title: str
    sides: Sequence[tuple[str, Sequence[Candidate]]]


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of one of an exhibit's runs, or a cell of it. cell: its index.  run: the number of the run."""

    path: str
    cell: Sequence[int] = ()
    run: int = 0


@dataclass(frozen=True)
class TablePanel:
    """A table. columns: their headings.  marked: the row that the title speaks of.  exhibits: the column that names exhibits.

    tinted: columns whose numbers are coloured, all on one scale.  places: {(row, column): the tensor that the cell speaks of}.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    marked: int | None = None
    exhibits: int | None = None
    tinted: Sequence[int] = ()
    places: Mapping[tuple[int, int], TensorPlace] = field(default_factory=dict)


def column_places(column: int, paths: Sequence[str], run: int = 0) -> dict[tuple[int, int], TensorPlace]:
    """Return the places of a table's column, each row a whole tensor of a run; a row with the path "" has none."""
    return {(row, column): TensorPlace(path, (), run) for row, path in enumerate(paths) if path}


@dataclass(frozen=True)
class BarPanel:
    """Numbers as bars, drawn from 0. unit: what they count.  most: the number of a full bar, the largest where None."""

    title: str
    bars: Mapping[str, float]
    unit: str = ""
    most: float | None = None


@dataclass(frozen=True)
class LinePanel:
    """Numbers along an axis, a line for each series. across: the axis' name.  at: its values.  series: {name: a number for each}.

    marked: a value of the axis that the panels beside it show.
    """

    title: str
    across: str
    at: Sequence[str | float]
    series: Mapping[str, Sequence[float | None]]
    marked: float | None = None


@dataclass(frozen=True)
class MatrixPanel:
    """Cells of one tensor. path: the tensor's, "" for a difference or a sum of several.

    scale: "share" from 0 to 1, "signed" about 0, "size" by powers of what is above 0.  cell: the index of a number in the tensor of a
    run, with "row" and "column" where the panel's stand; () if no cell has it.  run: the number of the run.  axes: what the rows and what
    the columns are, where their names do not say it.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]  # None: hidden
    path: str = ""
    scale: Literal["share", "signed", "size"] = "signed"
    cell: Sequence[int | Literal["row", "column"]] = ()
    run: int = 0
    axes: tuple[str, str] | tuple[()] = ()


@dataclass(frozen=True)
class CubePanel:
    """A tensor of three axes, drawn as a cube whose slices of the first axis can be taken off. axes: their names.  path: the tensor's."""

    title: str
    axes: tuple[str, str, str]
    values: Sequence[Sequence[Sequence[float]]]
    path: str = ""


@dataclass(frozen=True)
class Point:
    """A named point of a plane. moved: where an arrow from it ends."""

    name: str
    x: float
    y: float
    moved: tuple[float, float] | None = None


def way(names: Sequence[str], places: Sequence[Sequence[float]]) -> list[Point]:
    """Return the points of a way, each with an arrow to the next. places: (x, y) of each name."""
    after: list[tuple[float, float] | None] = [*((x, y) for x, y in places[1:]), None]
    return [Point(name, x, y, to) for name, (x, y), to in zip(names, places, after, strict=True)]


@dataclass(frozen=True)
class PlanePanel:
    """Points of a plane. across, up: what the axes are."""

    title: str
    across: str
    up: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Box:
    """A box of a diagram. note: its shape, count or setting.  depth: how deep it lies in the boxes before it."""

    name: str
    note: str = ""
    depth: int = 0
    marked: bool = False


@dataclass(frozen=True)
class DiagramPanel:
    """Stacks of boxes side by side, each read from above. stacks: {what it is: boxes}."""

    title: str
    stacks: Mapping[str, Sequence[Box]]


@dataclass(frozen=True)
class NetworkNode:
    """A node of a network. value: its number, None if it has none of its own."""

    name: str
    value: float | None = None


@dataclass(frozen=True)
class NetworkPanel:
    """Columns of nodes, each linked to every one of the next column. columns: {what they are: nodes}.

    weights: for each column but the last, a row for each of its nodes, with a number for each node of the next.
    """

    title: str
    columns: Mapping[str, Sequence[NetworkNode]]
    weights: Sequence[Sequence[Sequence[float]]]


@dataclass(frozen=True)
class TextPanel:
    """Lines of text, such as equations with their shapes."""

    title: str
    lines: Sequence[str] = field(default_factory=tuple)


Panel = AnswerPanel | TablePanel | BarPanel | LinePanel | MatrixPanel | CubePanel | PlanePanel | DiagramPanel | NetworkPanel | TextPanel


PAIR = "exhibit.pair_choice", "exhibit.pair_gap", "exhibit.pair_apart", "exhibit.pair_ways", "exhibit.pair_case"
SIDES = "exhibit.pair_one", "exhibit.pair_other", "exhibit.pair_one_there", "exhibit.pair_other_there"
NUMBERS = 4  # that are written of a pair


def pair_panels(made: Sequence[tuple[Reason, Trace, EqualPair]], cases: Mapping[str, str], chosen: str) -> list[TablePanel]:
    """Return the table of pairs of equal ways, and numbers of the chosen one, where the case shows most. cases: {pair: its case}."""
    rows = [(reason.name, pair.gap, pair.apart, reason.ways, cases[reason.name]) for reason, _, pair in made]
    at = next(n for n, (reason, _, _) in enumerate(made) if reason.name == chosen)
    reason, run, pair = made[at]
    title = say("exhibit.pair_numbers", ways=reason.ways, case=cases[reason.name], model=run.model)
    table = TablePanel(say("exhibit.pairs"), list(map(say, PAIR)), rows, at)
    return [table, TablePanel(title, list(map(say, SIDES)), pair.side_by_side(NUMBERS))]
