"""Cells that many requests of one batch take from another run's tensor, put in by one indexed assignment.

A sweep of 2,160 trials would else be 2,160 small assignments. What one request takes is `change.take`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.batch.kv_cache import Segment, Span
from pellucid.errors import ShapeError
from pellucid.watching.cells import Place
from pellucid.watching.change import Change, Taken


@dataclass(frozen=True, eq=False, kw_only=True)
class TakenCells(Change):
    """What several requests take of one table. takers: each request, and {letter: number} of its cells; the same letters in all."""

    table: Tensor
    takers: tuple[tuple[object, Mapping[str, int]], ...]

    def apply(self, x: Tensor, place: Place) -> Tensor | None:
        t = place.letters.index("T")
        if x.shape[:t] + x.shape[t + 1 :] != self.table.shape[:t] + self.table.shape[t + 1 :]:
            raise ShapeError("change.shape", change=self.text, found=tuple(self.table.shape), allowed=tuple(x.shape))
        rows, positions, cells = [], [], {letter: list[int]() for letter in self.takers[0][1] if letter != "T"}
        spans = spans_here(place)
        for request, at in self.takers:
            for row, position in taken_rows(spans.get(request), at):
                if position >= self.table.shape[t]:  # the other run is shorter: its last rows stay
                    continue
                rows.append(row)
                positions.append(position)
                for letter, numbers in cells.items():
                    numbers.append(at[letter])
        if not rows:
            return None
        index: list[Any] = [torch.tensor(cells[letter]) if letter in cells else slice(None) for letter in place.letters]
        x[(*index[:t], torch.tensor(rows), *index[t + 1 :])] = self.table[(*index[:t], torch.tensor(positions), *index[t + 1 :])].to(x)
        return x


def spans_here(place: Place) -> dict[object, Span]:
    """Return the span of each request whose rows stand in the running tensor."""
    spans = place.step_along("T").spans
    if not isinstance(place.segment, Segment):
        return {s.request: s for s in spans}
    return {s.request: replace(s, start=0, stop=s.stop - s.start) for s in spans if s.request == place.segment.request}


def taken_rows(span: Span | None, at: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield (row, position) of each row of a span that `at` names; all of them where it names no T."""
    for row in range(span.start, span.stop) if span is not None else ():
        position = span.before + row - span.start  # type: ignore[union-attr]
        if at.get("T", position) == position:
            yield row, position


def taken_together(changes: Sequence[Change], letters: Mapping[str, Sequence[str]], rows: Callable[[str], int]) -> list[Change]:
    """Return changes, of which no two of a request act on one tensor, with those that take plain cells of one tensor of one run as one.

    letters: of each path.  rows(path): those of a request.
    """
    groups, kept = dict[Any, list[Change]](), list[Change]()
    sizes = Sizes(letters)
    for c in changes:
        key = group_of(c, sizes, rows)
        (kept if key is None else groups.setdefault(key, [])).append(c)
    return kept + [merged(group) for group in groups.values()]


class Sizes:
    """The size of each axis of other runs' tensors, looked up once a tensor. letters: of the axes of each path of the running model."""

    def __init__(self, letters: Mapping[str, Sequence[str]]) -> None:
        self.letters, self.known = letters, dict[tuple[str, int], dict[str, int] | None]()

    def of(self, path: str, other: Any) -> dict[str, int] | None:
        """Return {letter: size}. None for a tensor that is not one record with rows T alone, which is taken from by each request."""
        key = path, id(other)
        if key not in self.known:
            letters = [*self.letters.get(path, ())]
            records = other.all(path) if "T" in letters and "S" not in letters else []
            records = [] if any(s.dims.split() != letters for s in records) else records
            self.known[key] = dict(zip(letters, records[0].shape, strict=True)) if len(records) == 1 else None
        return self.known[key]


def takes_plainly(c: Change, sizes: Sizes) -> bool:
    """True if `c` takes cells that it addresses by numbers, of one record with rows T alone."""
    if type(c) is not Change or not isinstance(c.become, Taken) or c.become.source or not isinstance(c.at, Mapping):
        return False
    size = sizes.of(c.path, c.become.other)
    return size is not None and all(type(i) is int and letter != "B" and 0 <= i < size.get(letter, 0) for letter, i in c.at.items())


def group_of(c: Change, sizes: Sizes, rows: Callable[[str], int]) -> Any:
    """Return what changes must share to be one: the path, the other run, and the letters that are addressed. None if it acts alone."""
    if c.request is None or not takes_plainly(c, sizes):
        return None
    assert isinstance(c.become, Taken) and isinstance(c.at, Mapping)
    position = c.at.get("T", 0)
    if isinstance(position, int) and position >= rows(c.path):  # it acts nowhere, which it says by itself
        return None
    return c.path, id(c.become.other), tuple(c.at)


class EqualRows:
    """The rows that a run has in common with other runs: what takes such a row changes nothing. letters: of the axes of each path.

    values: tensors of the run, by path.
    """

    def __init__(self, letters: Mapping[str, Sequence[str]], values: Mapping[str, Tensor]) -> None:
        self.sizes, self.values, self.known = Sizes(letters), values, dict[tuple[str, int], list[bool]]()

    def taken(self, c: Change) -> bool:
        """True if all that `c` takes is equal in this run and in the other one."""
        if c.path not in self.values or not takes_plainly(c, self.sizes):
            return False
        assert isinstance(c.become, Taken) and isinstance(c.at, Mapping)
        key = c.path, id(c.become.other)
        if key not in self.known:
            self.known[key] = equal_rows(self.values[c.path], c.become.other.all(c.path)[0].value, self.sizes.letters[c.path].index("T"))
        rows = self.known[key]
        return rows[c.at["T"]] if "T" in c.at else all(rows)  # type: ignore[index]


def equal_rows(x: Tensor, other: Tensor, axis: int) -> list[bool]:
    """Return whether each row along `axis` of x equals that of another tensor; none does if that has another shape."""
    if x.shape != other.shape:
        return [False] * other.shape[axis]
    rows: list[bool] = (x == other.to(x)).movedim(axis, 0).flatten(1).all(1).tolist()
    return rows


def merged(group: Sequence[Change]) -> Change:
    """Return changes of one group as one."""
    first = group[0]
    assert isinstance(first.become, Taken)
    takers = tuple((c.request, c.at) for c in group)
    table = first.become.other.all(first.path)[0].value
    return TakenCells(first.path, first.become, first.text, first.at, table=table, takers=takers)  # type: ignore[arg-type]
