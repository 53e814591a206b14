"""A table that can be read in a terminal, put into a spreadsheet, or into a text: one set of cells, three ways out, and JSON."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from pellucid.documents.amount import Amount
from pellucid.terminal.table import Column, clipped, measure, prose, table

Cell = str | int | Amount | None  # None: there is no such thing


@dataclass(frozen=True)
class Grid:
    """header: one name a column. rows: as long as the header. notes: sentences below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def lines(self, width: int) -> list[Text]:
        """For a terminal; columns that find no place stand below, beside the first one again."""
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
        """Columns that stand side by side."""
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
        """With whole numbers, not rounded; a row of amounts names its unit in its first cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            unit = next((c.unit for c in row if isinstance(c, Amount) and c.unit), "")
            first, *rest = (c.value if isinstance(c, Amount) else c for c in row)
            writer.writerow([f"{first} [{unit}]" if unit else first, *rest])
        return out.getvalue()

    def markdown(self) -> str:
        """A table of Markdown, and the notes below it."""
        rows = [list(self.header), ["---"] * len(self.header), *([shown(c) for c in row] for row in self.rows)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def document(self, name: str) -> dict[str, Any]:
        """As JSON."""
        rows = [[c.value if isinstance(c, Amount) else c for c in row] for row in self.rows]
        return {"schema": 1, "table": name, "header": list(self.header), "rows": rows, "notes": list(self.notes)}


def shown(cell: Cell) -> str:
    """A cell as people read it."""
    return "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)
