"""Parquet files as documents, read by pyarrow, which `pip install 'pellucid[data]'` brings: a row is what a line of a .jsonl file is."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pellucid.errors import TrainError

TOGETHER = 1000  # rows that are read at a time
MOST_NAMES = 8  # of columns or fields, in an error


def parquet_rows(content: IO[bytes], file: Path, columns: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each row, from 1, and its values by column; of these columns alone, where some are named.

    A TrainError without pyarrow, for a file that is no parquet, and for a column that it has not.
    """
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise TrainError("data.extra", path=file) from None
    number = 0
    try:
        table = ParquetFile(content)
        names = table.schema_arrow.names
        for column in columns:
            if column not in names:
                raise TrainError("data.column", path=file, column=column, found=", ".join(names[:MOST_NAMES]) or "-")
        for batch in table.iter_batches(TOGETHER, columns=list(columns) or None):
            for row in batch.to_pylist():
                number += 1
                yield number, {name: without_nulls(value) for name, value in row.items()}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as fault:
        raise TrainError("data.parquet", path=file, reason=" ".join(str(fault).split())[:200]) from None


def without_nulls(value: Any) -> Any:
    """Return a value without the fields of its structs that are null: parquet gives all of them to each struct, JSON the known ones."""
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return value
