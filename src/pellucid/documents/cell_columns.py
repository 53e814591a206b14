"""The terms of cells in few bytes: the columns whose products cells sum, each stored once, and for each cell the numbers of its columns.

A row that is multiplied by 128 rows of a weight is one column, not 128. The page multiplies the columns again (web/src/run/columns.ts);
each cell carries its sum, so that the page shows the sum of the record.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from pellucid.documents.summands import labels, needed, template, values
from pellucid.runs.kept_run import Run, kept
from pellucid.runs.limits import Limits
from pellucid.watching.records import Seen
from pellucid.watching.terms import Terms, column

SCHEMA = 1
SEPARATOR = "\n"  # of the names of a table's columns; a label has no line break
Rows = list[tuple[int, ...]]  # a cell's flat place, and the number of each factor's column


class CellGroup:
    """Cells of one tensor whose terms have the same names."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.sums: list[float] = []


class Columns:
    """The distinct columns of factors that a file carries, within a budget of numbers and of cells."""

    def __init__(self, numbers: int, cells: int) -> None:
        self.numbers, self.cells, self.carried = numbers, cells, 0
        self.dims: dict[str, str] = {}
        self.known: dict[bytes, int] = {}
        self.spans: list[tuple[int, int, int]] = []  # pool, begin, end
        self.pools: tuple[list[Any], list[Any]] = ([], [])  # float32 for columns that it holds exactly, and float64
        self.lengths = [0, 0]

    def file(self, records: Mapping[int, Seen]) -> bytes:
        """Return a safetensors file: the columns end to end, the span of each, and the cells of every tensor by names of factors."""
        tensors = {}
        for n, groups in self.fill(records).items():
            for i, (names, group) in enumerate(groups.items()):
                tensors[f"{n}.{i}.{SEPARATOR.join(names)}"] = torch.tensor(group.rows, dtype=torch.int32)
                tensors[f"{n}.{i}"] = torch.tensor(group.sums, dtype=torch.float64)
        pools = (np.concatenate(p) if p else np.zeros(0, t) for p, t in zip(self.pools, (np.float32, np.float64), strict=True))
        short, long = map(torch.from_numpy, pools)
        return save(tensors | {"short": short, "long": long, "spans": torch.tensor(self.spans, dtype=torch.int32).view(-1, 3)})

    def fill(self, records: Mapping[int, Seen]) -> dict[int, dict[tuple[str, ...], CellGroup]]:
        """Take cells of the records until the budget is used, and return them by the records' numbers.

        Goes token by token, the last one first; among the tensors of one token the small ones first, each with an equal share of the rest.
        """
        self.dims = {s.path: s.dims for s in records.values()}
        groups: dict[int, dict[tuple[str, ...], CellGroup]] = {}
        distances = {n: distance(s) for n, s in records.items() if s.terms is not None and s.value.numel()}
        for d in sorted(set().union(*(set(v.tolist()) for v in distances.values()))):
            if min(self.numbers, self.cells) <= 0:
                break
            here = [(n, (v == d).nonzero().flatten()) for n, v in distances.items() if bool((v == d).any())]
            here.sort(key=lambda tensor: cost(records[tensor[0]], tensor[1]))
            for left, (n, spots) in zip(range(len(here), 0, -1), here, strict=True):
                self.take(records[n], spots, self.numbers // left, self.cells // left, groups.setdefault(n, {}))
        return groups

    def take(self, seen: Seen, spots: Tensor, numbers: int, cells: int, groups: dict[tuple[str, ...], CellGroup]) -> None:
        """Add the cells at `spots` of a record to `groups`, the greatest first, until its share of numbers or cells is used."""
        assert seen.terms is not None
        least, label, wanted = self.numbers - numbers, labels(seen, self.dims), needed(template(seen))
        order = spots[seen.value.flatten().cpu()[spots].double().argsort(descending=True, stable=True)]
        for spot in order[:cells].tolist():
            if self.numbers <= least:
                return
            terms = seen.terms(tuple(int(n) for n in np.unravel_index(spot, seen.shape)))
            named = columns_of(terms, label, wanted)
            group = groups.setdefault(tuple(named), CellGroup())
            group.rows.append((spot, *map(self.column, named.values())))
            group.sums.append(terms.total())
            self.carried, self.cells = self.carried + 1, self.cells - 1

    def column(self, factor: Tensor) -> int:
        """Return the number of a column. Stores it if it is new."""
        values = factor.contiguous().numpy()
        key = values.tobytes()
        if (number := self.known.get(key)) is None:
            with np.errstate(over="ignore"):
                short = values.astype(np.float32)
            pool = int(not np.array_equal(short.astype(np.float64), values, equal_nan=True))
            self.pools[pool].append(values if pool else short)
            self.spans.append((pool, self.lengths[pool], self.lengths[pool] + len(values)))
            self.lengths[pool] += len(values)
            self.numbers -= len(values)
            number = self.known[key] = len(self.known)
        return number


def columns_of(terms: Terms, label: Callable[[str], str], wanted: Sequence[str]) -> dict[str, Tensor]:
    """Return the columns of a cell by the names that the page reads: factors, "+" added numbers, "?" numbers of its template."""
    columns = {label(name): f for name, f in terms.factors.items()}
    columns |= {f"+{label(name)}": column(x) for name, x in terms.added.items()}
    numbers = values(terms)
    return columns | {f"?{name}": column(numbers[name]) for name in wanted if name in numbers}


def distance(seen: Seen) -> Tensor:
    """Return the distance of each cell's token to the last one, flat; zeros for a tensor without an axis of tokens."""
    axes = seen.dims.split()
    at = next((axes.index(a) for a in "TN" if a in axes), None)
    if at is None:
        return torch.zeros(prod(seen.shape), dtype=torch.long)
    n = seen.shape[at]
    row = seen.rows.cpu() if axes[at] == "N" and seen.rows is not None else torch.arange(n)
    back = (row.max() - row).view([n if i == at else 1 for i in range(len(axes))])
    return back.expand(seen.shape).flatten()


def cost(seen: Seen, spots: Tensor) -> int:
    """Estimate how many numbers the terms of these cells take."""
    assert seen.terms is not None
    at = tuple(int(n) for n in np.unravel_index(int(spots[0]), seen.shape))
    return len(spots) * len(seen.terms(at).summands)


def columns_document(run: Run, limits: Limits) -> dict[str, Any]:
    """Return the terms of the run's cells in base64. told: number of cells with terms; cells: number of all.

    A tensor that is computed only on request has no terms here, as it has no values in a file.
    """
    records = {n: s for n, s in enumerate(run.trace.seen) if kept(s)}
    columns = Columns(limits.column_numbers, limits.column_cells)
    file = columns.file({n: s for n, s in records.items() if s.terms is not None})
    cells = sum(s.value.numel() for s in records.values())
    carried = {"bytes": base64.b64encode(file).decode("ascii"), "told": columns.carried, "cells": cells}
    return {"schema": SCHEMA, "run": run.id} | carried
