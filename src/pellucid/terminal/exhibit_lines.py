"""An exhibit as lines of a terminal: what is often said, what is so, its panels, and its claims with a mark."""

from collections.abc import Iterator

from rich.style import Style
from rich.text import Text

from pellucid.documents.exhibit import ExhibitDocument, shown_value
from pellucid.documents.number import number, percent
from pellucid.documents.panel_document import (
    AnswerPanelDocument,
    BarPanelDocument,
    CubePanelDocument,
    DiagramPanelDocument,
    LinePanelDocument,
    MatrixPanelDocument,
    NetworkPanelDocument,
    NodeDocument,
    PanelDocument,
    PlanePanelDocument,
    TablePanelDocument,
)
from pellucid.messages import say
from pellucid.terminal.sparkline import bar, shade, tint
from pellucid.terminal.table import Cell, Column, clipped, prose, table

TITLE, DIM, NAME, HOLDS, FAILS = "bold", "dim", "cyan", "green", "red"
BAR = 24  # characters of a full bar


def exhibit_lines(d: ExhibitDocument, width: int, colour: bool) -> list[Text]:
    """Write an exhibit."""
    head = d["head"]
    out = [*prose("  ·  ".join(filter(None, (head["title"], d["model"], d["dtype"]))), width, TITLE), Text()]
    out += [*prose(say("exhibit.said", text=head["said"]), width, DIM), *prose(say("exhibit.true", text=head["true"]), width), Text()]
    for panel in d["panels"]:
        out += [*prose(panel["title"], width, TITLE), *drawn(panel, width, colour), Text()]
    for claim in d["claims"]:
        mark = Text("✓ " if claim["holds"] else "✗ ", HOLDS if claim["holds"] else FAILS)
        first, *rest = prose(claim["text"], width - 3, indent=0)
        out += [Text(" ") + mark + first, *(Text("   ") + line for line in rest)]
    return clipped(out, width)


def drawn(p: PanelDocument, width: int, colour: bool) -> list[Text]:
    """Draw a panel."""
    if p["kind"] == "answers":
        return answers(p, width)
    if p["kind"] == "table":
        return rows(p, width)
    if p["kind"] == "bars":
        return bars(p, width)
    if p["kind"] == "lines":
        return list(series(p))
    if p["kind"] == "matrix":
        return list(matrix(p, colour))
    if p["kind"] == "cube":
        return cube(p)
    if p["kind"] == "plane":
        return points(p)
    if p["kind"] == "diagram":
        return diagram(p, width)
    if p["kind"] == "network":
        return network(p)
    return [line for one in p["lines"] for line in prose(one, width)]


def answers(p: AnswerPanelDocument, width: int) -> list[Text]:
    """Draw the likeliest next tokens of each run."""
    out: list[Text] = []
    for side in p["sides"]:
        cells: list[list[Cell]] = [
            [c["piece"] or str(c["id"]), percent(c["probability"] or 0.0), bar(c["probability"] or 0.0, BAR)] for c in side["candidates"]
        ]
        out += [*prose(side["about"], width, NAME, 2), *table(cells, [Column(most=width // 3), Column(">"), Column()], indent=3)]
    return out


def rows(p: TablePanelDocument, width: int) -> list[Text]:
    """Draw a table."""
    titles: list[Cell] = [Text(c, DIM) for c in p["columns"]]
    numeric = [all(not isinstance(row[i], str) for row in p["rows"]) for i in range(len(p["columns"]))]
    cells = [[Text(shown_value(v), TITLE if n == p["marked"] else "") for v in row] for n, row in enumerate(p["rows"])]
    return table([titles, *cells], [Column(">" if n else "<", max(12, width // 2)) for n in numeric], indent=2)


def bars(p: BarPanelDocument, width: int) -> list[Text]:
    """Draw numbers as bars."""
    most = p["most"] or max((abs(b["value"] or 0.0) for b in p["bars"]), default=0.0) or 1.0
    cells: list[list[Cell]] = [
        [b["name"], f"{shown_value(b['value'])} {p['unit']}".strip(), bar(abs(b["value"] or 0.0) / most, BAR)] for b in p["bars"]
    ]
    return table(cells, [Column(most=width // 3, style=NAME), Column(">"), Column()], indent=2)


def series(p: LinePanelDocument) -> Iterator[Text]:
    """Draw lines as a table with a row for each place on the axis."""
    titles: list[Cell] = [Text(p["across"], DIM), *(Text(s["name"], NAME) for s in p["series"])]
    cells: list[list[Cell]] = [[shown_value(at), *(shown_value(s["values"][i]) for s in p["series"])] for i, at in enumerate(p["at"])]
    yield from table([titles, *cells], [Column(), *[Column(">", 18)] * len(p["series"])], indent=2)


def matrix(p: MatrixPanelDocument, colour: bool) -> Iterator[Text]:
    """Draw cells, each with its number."""
    known = [abs(v) for row in p["values"] for v in row if v is not None]
    top = 1.0 if p["scale"] == "share" else max(known, default=0.0) or 1.0
    corner = f"↓ {p['axes'][0]} → {p['axes'][1]}" if p["axes"] else ""
    titles: list[Cell] = [Text(corner, DIM), *(Text(c, DIM) for c in p["columns"])]
    cells: list[list[Cell]] = [[name, *(cell(v, top, colour) for v in row)] for name, row in zip(p["rows"], p["values"], strict=True)]
    yield from table([titles, *cells], [Column(style=DIM, most=24), *[Column(">", 9)] * len(p["columns"])], gap=1, indent=2)


def cube(p: CubePanelDocument) -> list[Text]:
    """Draw the slices of a cube one behind another, each a line of marks for a row, and the numbers at each row's ends."""
    top = max((abs(v) for one in p["values"] for row in one for v in row if v is not None), default=0.0) or 1.0
    depth, out = len(p["values"]), [Text(f"  ↗ {p['axes'][0]}   ↓ {p['axes'][1]}   → {p['axes'][2]}", DIM)]
    for i, one in enumerate(p["values"]):
        indent = " " * (2 + 2 * (depth - 1 - i))
        out.append(Text(f"{indent}{p['axes'][0]} {i}", NAME))
        out += [
            Text(f"{indent}{''.join(shade(v or 0.0, top) for v in row)}  {shown_value(row[0])} … {shown_value(row[-1])}") for row in one
        ]
    return out


def cell(v: float | None, top: float, colour: bool) -> Text:
    """Write a number of a matrix, tinted by its size. A hidden cell is empty."""
    if v is None:
        return Text("")
    words = number(v)
    if colour:
        return Text(words.rjust(6), Style(color="white" if abs(v) > 0.55 * top else "black", bgcolor=tint(v, top)))
    return Text(shade(v, top) + words)


def points(p: PlanePanelDocument) -> list[Text]:
    """Write the places of points."""
    titles: list[Cell] = ["", Text(p["across"], DIM), Text(p["up"], DIM), ""]
    cells = [
        [
            one["name"],
            shown_value(one["x"]),
            shown_value(one["y"]),
            "" if one["moved"] is None else "→ " + ", ".join(map(number, one["moved"])),
        ]
        for one in p["points"]
    ]
    return table([titles, *cells], [Column(style=NAME), Column(">"), Column(">"), Column()], indent=2)


def diagram(p: DiagramPanelDocument, width: int) -> list[Text]:
    """Draw stacks of boxes side by side."""
    most = max((len(s["boxes"]) for s in p["stacks"]), default=0)
    titles: list[Cell] = [Text(s["about"], NAME) for s in p["stacks"]]
    cells: list[list[Cell]] = []
    for i in range(most):
        boxes = [s["boxes"][i] if i < len(s["boxes"]) else None for s in p["stacks"]]
        texts = ["" if b is None else "  " * b["depth"] + b["name"] + (f"  {b['note']}" if b["note"] else "") for b in boxes]
        cells.append([Text(text, TITLE if b and b["marked"] else "") for text, b in zip(texts, boxes, strict=True)])
    return table([titles, *cells], [Column(most=max(16, width // max(1, len(titles)) - 3))] * len(titles), gap=3, indent=2)


def network(p: NetworkPanelDocument) -> list[Text]:
    """Write the links between each two columns as a table: a row for each node of the first, a column for each of the second."""
    out: list[Text] = []
    for first, second, weights in zip(p["columns"], p["columns"][1:], p["weights"], strict=False):
        titles: list[Cell] = [Text(f"{first['about']} → {second['about']}", DIM), *(Text(valued(n), NAME) for n in second["nodes"])]
        cells: list[list[Cell]] = [
            [Text(valued(n), NAME), *(shown_value(w) for w in row)] for n, row in zip(first["nodes"], weights, strict=True)
        ]
        out += [*table([titles, *cells], [Column(most=28), *[Column(">", 18)] * len(second["nodes"])], indent=2), Text()]
    return out[:-1]


def valued(n: NodeDocument) -> str:
    """Write a node's name and its number."""
    return n["name"] if n["value"] is None else f"{n['name']} {number(n['value'])}"
