"""Texts as documents: the files that a recipe names, read line by line; each fault is one line with its file and place.

a.txt     one document, or several with a line <|endoftext|> between them. Nothing else parts a text: a blank line may belong to a poem
a.md      likewise; its marks are text
b.jsonl   a document a line, {"text": "..."}; `data.field` names the field
c.csv     a document a row, in the column that `data.field` names; the first row has the columns' names
c.parquet a document a row, likewise
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pellucid.checkpoint.disk import reason, regular
from pellucid.checkpoint.json_file import name_of, parse
from pellucid.errors import TrainError
from pellucid.training.corpus import END_OF_TEXT
from pellucid.training.csv_rows import csv_rows
from pellucid.training.parquet import MOST_NAMES, parquet_rows

MARK = "\ufeff".encode()  # a byte-order mark, which some editors write before a text


@dataclass(frozen=True)
class MixedSource:
    """One [[data.source]] of a recipe. files: its patterns.  weight: how often an epoch has each row; of 0.5 half of them, by turns."""

    files: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Texts:
    """The [data] table of a recipe of texts. files: patterns, relative to `root`.  field: of a JSON line.  length: positions of a row.

    pack: "documents", several in a row and each apart; "stream", rows cut from one long text; or "none", a document a row.
    long: what becomes of a document longer than a row, "split", "drop", "cut" or "refuse".  held_out: the share that is not trained on.
    source: the sources that the files are of, with their weights; () if all weigh the same.
    cache: the tokens are kept for later runs, and taken from earlier ones.
    """

    root: Path
    files: tuple[str, ...]
    field: str | tuple[str, ...] = "text"
    length: int = 256
    pack: str = "documents"
    long: str = "split"
    held_out: float = 0.005
    source: tuple[MixedSource, ...] = ()
    cache: bool = True

    def name(self, file: Path) -> str:
        """Return a file's name in the index: relative to the recipe if it lies below it."""
        return (file.relative_to(self.root) if file.is_relative_to(self.root) else file).as_posix()

    def require_positions(self, positions: int | None) -> None:
        """Raise TrainError if a row is longer than the positions of a model. None: the model reads rows of any length."""
        if positions is not None and self.length > positions:
            raise TrainError("data.positions", found=self.length, most=positions)


def sources(data: Texts) -> list[Path]:
    """Return the files of all patterns in their order, each once. A TrainError if a pattern matches nothing, or another kind of file."""
    files: dict[Path, None] = {}
    for pattern in data.files:
        anchor = Path(pattern).anchor
        try:
            matched = sorted((Path(anchor) if anchor else data.root).glob(pattern.removeprefix(anchor)))
        except (ValueError, OSError, IndexError):
            matched = []
        folder = any(file.is_dir() for file in matched) and not set(pattern) & set("*?[")
        matched = [file for file in matched if not file.is_dir()]
        if not matched:
            raise TrainError("data.pattern" if folder else "data.none", path=data.root.resolve(), pattern=pattern.rstrip("/"))
        for file in matched:
            if file.suffix.lower() not in READERS:
                raise TrainError("data.kind", path=file, allowed=", ".join(READERS))
        files.update(dict.fromkeys(matched))
    return list(files)


def grouped(data: Texts) -> list[list[str]]:
    """Return the names of the files of each source. A TrainError for a file of two sources."""
    groups = [[data.name(file) for file in sources(replace(data, files=one.files))] for one in data.source]
    every = [name for group in groups for name in group]
    for name, times in Counter(every).items():
        if times > 1:
            raise TrainError("data.sources", path=data.root / name)
    return groups


def read_documents(file: Path, field: str) -> Iterator[str]:
    """Yield the documents of one file. A TrainError at its first fault, or at its end if it has no document."""
    count = 0
    try:
        with regular(file, TrainError) as fd, os.fdopen(os.dup(fd), "rb") as lines:
            for text in READERS[file.suffix.lower()](lines, file, field):
                count += 1
                yield text
    except OSError as fault:
        raise TrainError("file.closed", file=file, reason=reason(fault)) from None
    if not count:
        raise TrainError("data.empty", path=file)


def _plain(lines: IO[bytes], file: Path, field: str) -> Iterator[str]:
    """Yield the documents of a text: what stands between lines <|endoftext|>, without the line ends around it."""
    offset, kept = 0, list[str]()
    for line in lines:
        text = _decoded(line, offset, file).replace("\r\n", "\n")
        if not offset:
            text = text.removeprefix("\ufeff")
        offset += len(line)
        if text.strip() != END_OF_TEXT:
            kept.append(text)
            continue
        if document := "".join(kept).strip("\n"):
            yield document
        kept = []
    if document := "".join(kept).strip("\n"):
        yield document


def _json_lines(lines: IO[bytes], file: Path, field: str) -> Iterator[str]:
    """Yield the field of each line's JSON object."""
    return (entry_text(entry, file, number, field) for number, entry in _entries(lines, file))


def _entries(lines: IO[bytes], file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line, from 1, and its JSON object; blank lines are passed over."""
    offset = 0
    for number, line in enumerate(lines, 1):
        line = line.removeprefix(MARK) if number == 1 else line
        _decoded(line, offset, file)
        offset += len(line)
        if line.strip():
            yield number, _entry(line, file, number)


def _column(content: IO[bytes], file: Path, field: str) -> Iterator[str]:
    """Yield the texts of a column of a parquet file."""
    return (entry_text(row, file, number, field) for number, row in parquet_rows(content, file, (field,)))


def _decoded_lines(lines: IO[bytes], file: Path) -> Iterator[str]:
    """Yield the lines of a text, without a mark before the first."""
    offset = 0
    for line in lines:
        text = _decoded(line, offset, file)
        yield text if offset else text.removeprefix("\ufeff")
        offset += len(line)


def _cells(lines: IO[bytes], file: Path, field: str) -> Iterator[str]:
    """Yield the texts of a column of a CSV file."""
    return (entry_text(row, file, number, field) for number, row in csv_rows(_decoded_lines(lines, file), file, (field,)))


def _rows(lines: IO[bytes], file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line of each row of a CSV file, and its cells by column."""
    return csv_rows(_decoded_lines(lines, file), file)


READERS = {".txt": _plain, ".md": _plain, ".jsonl": _json_lines, ".csv": _cells, ".parquet": _column}
Entries = Iterator[tuple[int, dict[str, Any]]]
ENTRIES: dict[str, Callable[[IO[bytes], Path], Entries]] = {".jsonl": _entries, ".csv": _rows, ".parquet": parquet_rows}


def read_entries(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line of a .jsonl or .csv file, or row of a .parquet, from 1, and its fields.

    A TrainError at its first fault.
    """
    if file.suffix.lower() not in ENTRIES:
        raise TrainError("data.kind", path=file, allowed=", ".join(ENTRIES))
    try:
        with regular(file, TrainError) as fd, os.fdopen(os.dup(fd), "rb") as content:
            yield from ENTRIES[file.suffix.lower()](content, file)
    except OSError as fault:
        raise TrainError("file.closed", file=file, reason=reason(fault)) from None


def _entry(line: bytes, file: Path, number: int) -> dict[str, Any]:
    try:
        entry = parse(line, f"{file}:{number}", TrainError)
    except TrainError as fault:
        if fault.key != "json.syntax":
            raise
        raise TrainError("data.json", path=file, line=number, column=fault.values["column"]) from None
    if not isinstance(entry, dict):
        raise TrainError("data.json", path=file, line=number, column=1)
    return entry


def entry_text(entry: dict[str, Any], file: Path, number: int, field: str) -> str:
    """Return the text of a line's field. A TrainError if it is missing, no string, or empty."""
    if field not in entry:
        names = ", ".join(list(entry)[:MOST_NAMES]) or "-"
        raise TrainError("data.field", path=file, line=number, field=field, found=names)
    text = entry[field]
    if not isinstance(text, str):
        raise TrainError("data.type", path=file, line=number, field=field, found=name_of(text))
    if not text:
        raise TrainError("data.blank", path=file, line=number, field=field)
    return text


def _decoded(line: bytes, offset: int, file: Path) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise TrainError("data.encoding", path=file, byte=f"{line[fault.start]:02x}", offset=f"{offset + fault.start:,}") from None
