"""Columns of text that line up at any width, in any script: widths are of terminal cells, and Chinese characters have two.

A cell that is too long ends in "…"; nothing is ever wrapped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

Cell = Text | str


@dataclass(frozen=True)
class Column:
    """How a column is set: "<" to the left, ">" to the right; at most `most` cells wide; in this style."""

    side: str = "<"
    most: int = 10_000
    style: str = ""


def text(cell: Cell, style: str = "") -> Text:
    """A cell as rich text."""
    return cell.copy() if isinstance(cell, Text) else Text(cell, style)


def cut(cell: Cell, width: int, style: str = "") -> Text:
    """A cell of at most this width."""
    t = text(cell, style)
    if t.cell_len > width:
        t.truncate(width, overflow="ellipsis" if width > 1 else "crop")
    return t


def fitted(cell: Cell, width: int, side: str = "<", style: str = "") -> Text:
    """A cell cut or filled to exactly this width."""
    t = cut(cell, width, style)
    gap = Text(" " * (width - t.cell_len))
    return gap + t if side == ">" else t + gap


def widths(rows: Sequence[Sequence[Cell]], columns: Sequence[Column]) -> list[int]:
    """The width that each column needs, within its bound."""
    needed = [max((measure(row[i]) for row in rows if i < len(row)), default=0) for i in range(len(columns))]
    return [min(n, c.most) for n, c in zip(needed, columns, strict=True)]


def measure(cell: Cell) -> int:
    """How many cells of a terminal a text takes."""
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def line(row: Sequence[Cell], columns: Sequence[Column], sizes: Sequence[int], gap: int, indent: int = 0) -> Text:
    """One row; columns of width 0 leave no gap; spaces at the end are cut."""
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
    """Rows as lines."""
    sizes = widths(rows, columns)
    return [line(row, columns, sizes, gap, indent) for row in rows]


def clipped(lines: Sequence[Text], width: int) -> list[Text]:
    """Lines of at most this many cells."""
    return [cut(one, width) for one in lines]


def prose(sentence: str, width: int, style: str = "", indent: int = 1) -> list[Text]:
    """A sentence in lines of at most this many cells, broken between words, or between characters where there are no spaces."""
    out = []
    for one in Text(sentence, style).wrap(Console(width=width), max(8, width - indent)):
        one.rstrip()
        out.append(Text(" " * indent) + one)
    return out
