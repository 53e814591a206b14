"""CSV files as documents: the first row has the names of the columns, and each other row is what a line of a .jsonl file is (RFC 4180)."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pellucid.errors import TrainError
from pellucid.training.parquet import MOST_NAMES

LONGEST = 1 << 30  # characters of a cell, where Python's own limit is 131,072


def csv_rows(lines: Iterable[str], file: Path, columns: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line that each row ends in, from 1, and its cells by column; rows that are empty are passed over.

    lines: of the file, with their ends.  columns: that it must have.  A TrainError for a column that it has not, or twice, for a row with
    more or fewer cells than columns, and for quotes that do not close.
    """
    csv.field_size_limit(LONGEST)
    rows = csv.reader(lines, strict=True)
    try:
        names = next(rows, [])
        for column in columns:
            if names.count(column) != 1:
                raise TrainError("data.column", path=file, column=column, found=", ".join(names[:MOST_NAMES]) or "-")
        for row in rows:
            if row and len(row) != len(names):
                raise TrainError("data.cells", path=file, line=rows.line_num, found=len(row), columns=len(names))
            if row:
                yield rows.line_num, dict(zip(names, row, strict=True))
    except csv.Error as fault:
        raise TrainError("data.csv", path=file, line=rows.line_num, reason=fault) from None
