"""Columns of text, aligned at any width in any script: widths are in terminal cells, of which a Chinese character has two.

A cell that is too long ends in "…"; only prose is wrapped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

Cell = Text | str


@dataclass(frozen=True)
class Column:
    """The setting of a column. side: "<" for left, ">" for right.  most: its greatest width."""

    side: str = "<"
    most: int = 10_000
    style: str = ""


def text(cell: Cell, style: str = "") -> Text:
    """Return a cell as rich text."""
    return cell.copy() if isinstance(cell, Text) else Text(cell, style)


def cut(cell: Cell, width: int, style: str = "") -> Text:
    """Cut a cell to at most this width."""
    t = text(cell, style)
    if t.cell_len > width:
        t.truncate(width, overflow="ellipsis" if width > 1 else "crop")
    return t


def fitted(cell: Cell, width: int, side: str = "<", style: str = "") -> Text:
    """Cut or fill a cell to exactly this width."""
    t = cut(cell, width, style)
    gap = Text(" " * (width - t.cell_len))
    return gap + t if side == ">" else t + gap


def widths(rows: Sequence[Sequence[Cell]], columns: Sequence[Column]) -> list[int]:
    """Return the width that each column needs, within its bound."""
    needed = [max((measure(row[i]) for row in rows if i < len(row)), default=0) for i in range(len(columns))]
    return [min(n, c.most) for n, c in zip(needed, columns, strict=True)]


def measure(cell: Cell) -> int:
    """Return the number of terminal cells that a text takes."""
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def line(row: Sequence[Cell], columns: Sequence[Column], sizes: Sequence[int], gap: int, indent: int = 0) -> Text:
    """Write one row. A column of width 0 leaves no gap; trailing spaces are removed."""
    out = Text(" " * indent)
    first = True
    for cell, column, width in zip(row, columns, sizes, strict=True):
        if width == 0:
            continue
        out += Text("" if first else " " * gap) + fitted(cell, width, column.side, column.style)
        first = False
    out.rstrip()
    return out


def table(rows: Sequence[Sequence[Cell]], columns: Sequence[Column], gap: int = 2, indent: int = 1) -> list[Text]:
    """Write rows as lines, with columns as wide as they need."""
    sizes = widths(rows, columns)
    return [line(row, columns, sizes, gap, indent) for row in rows]


def clipped(lines: Sequence[Text], width: int) -> list[Text]:
    """Cut lines to at most `width` cells."""
    return [cut(one, width) for one in lines]


def prose(sentence: str, width: int, style: str = "", indent: int = 1) -> list[Text]:
    """Wrap a sentence to lines of at most `width` cells, between words, or between characters in a script without spaces."""
    out = []
    for one in Text(sentence, style).wrap(Console(width=width), max(8, width - indent)):
        one.rstrip()
        out.append(Text(" " * indent) + one)
    return out


def titled(name: str, facts: str, width: int) -> list[Text]:
    """Write a model's name and facts about it in a line, or the facts in lines of their own if one is too narrow."""
    head = Text.assemble((name, "bold"), (f"  {facts}", "dim"))
    return [head] if head.cell_len <= width else [Text(name, "bold"), *prose(facts, width, "dim", 2)]
