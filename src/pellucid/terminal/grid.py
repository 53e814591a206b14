"""A grid of cells, written as lines of a terminal, CSV, Markdown, or JSON."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from pellucid.documents.amount import Amount
from pellucid.terminal.table import Column, clipped, measure, prose, table

Cell = str | int | Amount | None  # None: not applicable


@dataclass(frozen=True)
class Grid:
    """A table. header: one name a column.  rows: as long as the header.  notes: sentences below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def lines(self, width: int) -> list[Text]:
        """Write the grid for a terminal. Columns that do not fit are in blocks below, each with the first column again."""
        out = [Text(self.title, "bold")] if self.title else []
        cells: list[list[Text | str]] = [[Text(name, "dim") for name in self.header]]
        cells += [[shown(c) for c in row] for row in self.rows]
        sides = [">" if any(isinstance(row[i], int | Amount) for row in self.rows) else "<" for i in range(len(self.header))]
        for block, columns in enumerate(self.blocks(cells, width)):
            out += [Text()] * (block > 0)
            set_as = [Column(sides[i]) for i in columns]
            out += clipped(table([[row[i] for i in columns] for row in cells], set_as), width)
        for note in self.notes:
            out += prose(note, width, "dim")
        return out

    def blocks(self, cells: Sequence[Sequence[Text | str]], width: int) -> Iterator[list[int]]:
        """Yield the columns of each block that fits `width`."""
        sizes = [max(measure(row[i]) for row in cells) for i in range(len(self.header))]
        block, used = [0], sizes[0] + 1
        for i, size in enumerate(sizes[1:], 1):
            if used + 2 + size > width and len(block) > 1:
                yield block
                block, used = [0], sizes[0] + 1
            block.append(i)
            used += 2 + size
        yield block

    def csv(self) -> str:
        """Write the grid as CSV, with exact numbers. A row of amounts has its unit in its first cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            unit = next((c.unit for c in row if isinstance(c, Amount) and c.unit), "")
            first, *rest = (c.value if isinstance(c, Amount) else c for c in row)
            writer.writerow([f"{first} [{unit}]" if unit else first, *rest])
        return out.getvalue()

    def markdown(self) -> str:
        """Write the grid as a table of Markdown, with the notes below it."""
        rows = [list(self.header), ["---"] * len(self.header), *([shown(c) for c in row] for row in self.rows)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def document(self, name: str) -> dict[str, Any]:
        """Return the grid as JSON."""
        rows = [[c.value if isinstance(c, Amount) else c for c in row] for row in self.rows]
        return {"schema": 1, "table": name, "header": list(self.header), "rows": rows, "notes": list(self.notes)}


def shown(cell: Cell) -> str:
    """Write a cell with separators and units, "–" for None."""
    return "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)
