"""A tile of a weight in a recorded step of training: how far the step moved each cell, beside the same cells of other steps."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from pellucid.api.run import Run
from pellucid.checkpoint.safetensors_file import read_header, read_tensor
from pellucid.errors import UseError, nearest
from pellucid.training.watched import UPDATES

ROWS, COLUMNS = 12, 24


class WeightTile(NamedTuple):
    """The cells of a matrix about one of them. lead: the indices before its last two.  rows, columns: the indices of the tile.

    moved: how far the step moved each cell [rows columns].  largest: of a cell of the tile over all recorded steps.
    """

    lead: tuple[int, ...]
    rows: range
    columns: range
    moved: Tensor
    largest: float


def weight_tile(run: Run, step: int, path: str, cell: Sequence[int]) -> WeightTile:
    """Return the tile of parameter `path` about a cell, in a recorded step. A UseError for a parameter or cell that there is not."""
    files = {at: read_header(run.watched.root / f"{at:09d}" / UPDATES) for at in (step, *run.watched)}
    known = files[step]
    if path not in known:
        raise UseError("why.weight", path=path, near=nearest(path, known))
    shape = known[path].shape
    if len(cell) != len(shape) or not all(0 <= i < n for i, n in zip(cell, shape, strict=True)):
        raise UseError("why.cell", path=path, cell=", ".join(map(str, cell)), shape=" × ".join(map(str, shape)))
    high, wide = (1, *shape)[-2:] if len(shape) < 2 else shape[-2:]
    row, column = (0, *cell)[-2:] if len(shape) < 2 else tuple(cell[-2:])
    rows, columns = about(row, high, ROWS), about(column, wide, COLUMNS)
    lead = tuple(cell[:-2])

    def at(which: int) -> Tensor:
        t = read_tensor(files[which][path])[lead] if lead else read_tensor(files[which][path])
        return t.reshape(high, wide)[rows.start : rows.stop, columns.start : columns.stop].double()

    largest = max(float(at(which).abs().max()) for which in files if path in files[which])
    return WeightTile(lead, rows, columns, at(step), largest)


def about(i: int, n: int, most: int) -> range:
    """Return at most `most` of the indices below n, in whole tiles, so that a neighbour of a cell lies in the same one."""
    first = i // most * most
    return range(first, min(n, first + most))
