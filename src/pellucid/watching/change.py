"""Changes: what becomes of chosen cells of the tensors that a path names, while a model runs.

    watch(model, edit=[zero("layers.2.attn.z", H=3), add("layers.2.out", v, T=slice(4, None))])
    trace(model, "The capital of France is", steps=3, edit=[take("layers.1.out", other, T=4)])

T and S count positions of the text: the same cells in a prefill, in chunks of one, over a cache, and in a batch of requests.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.arguments import checked
from pellucid.errors import ShapeError, TraceError, UseError
from pellucid.watching.cells import ALONG, Find, Index, Place, TextRows, chosen_cells, chosen_rows, relative
from pellucid.watching.forward_values import ForwardValues, filled
from pellucid.watching.tap import described

Function = Callable[[Tensor], Tensor | None]
At = Mapping[str, Index] | tuple[Index, ...]  # by axis letters, or one index for every axis
Value = float | Tensor | str  # a number, a tensor, or the path of one


@dataclass(frozen=True)
class Cells:
    """The chosen cells of one text in one tensor. numbers: of each axis.  dropped: the axes that one number addresses.

    text: the change in writing.  named: the axes that it addresses.  step: which forward.  find: finds a word in a prompt.
    part, values: of the Place.
    """

    path: str
    text: str
    letters: list[str]
    numbers: list[Tensor]
    dropped: tuple[int, ...]
    positions: Mapping[str, Tensor]  # of the chosen rows, by axis
    named: frozenset[str] = frozenset()
    step: int = 0
    find: Find | None = None
    part: tuple[Any, ...] = ()
    values: ForwardValues | None = None

    def index(self) -> tuple[Tensor, ...]:
        """Return the index of these cells: each axis' numbers, shaped for an outer product."""
        return outer(self.numbers)


Become = Callable[[Tensor, Cells], Tensor]


@dataclass(frozen=True, eq=False)
class Change:
    """A change of the tensors that `path` names, which may hold `*`.

    at: {axis letter: index}, or an index for every axis; all cells where it is empty.  become(cells, which): their new values.
    text: the change in writing.  request: whose rows alone it changes.  find: finds a word in a prompt.  required: an error if it acts on
    no cell.  reads: the path of a tensor of the same forward whose cells it takes; its `*` are those of `path`.
    """

    path: str
    become: Become
    text: str
    at: At = field(default_factory=dict)
    request: object = None
    find: Find | None = None
    required: bool = True
    reads: str = ""

    def apply(self, x: Tensor, place: Place) -> Tensor | None:
        """Return x [as place.letters] with its chosen cells changed, in place; None if it has none of them."""
        at = by_letter(self.at, place.letters, place.path, self.text)
        along = {axis: at[letter] for axis, letter in ALONG.items() if axis in place.letters and letter in at}
        if unknown := [letter for letter in at if letter not in place.letters and letter not in {ALONG[axis] for axis in along}]:
            raise ShapeError("change.letter", change=self.text, letter=unknown[0], path=place.path, allowed=" ".join(place.letters))
        hit = False
        for own in place.texts(bool(along) and (place.padded or any(map(relative, along.values()))), along):
            rows = {
                axis: chosen_rows(index, own.positions[axis], own.prompts.get(ALONG[axis]), self.find, self.text)
                for axis, index in along.items()
            }
            if all(len(r) for r in rows.values()):
                self.change(x, place, at, rows, own)
                hit = True
        return x if hit else None

    def change(self, x: Tensor, place: Place, at: Mapping[str, Index], rows: Mapping[str, Tensor], of: TextRows) -> None:
        """Change the cells of one text. at: the index of each addressed axis.  rows: the chosen ones along each axis of the text."""
        numbers, dropped = [], []
        for n, (letter, size) in enumerate(zip(place.letters, x.shape, strict=True)):
            index = at.get(letter) if letter not in ALONG else None
            own = rows.get(letter)
            if own is None:
                own = torch.arange(size) if index is None else chosen_cells(index, size, letter, self.text)
            if letter == "B" and of.batch is not None and index is None:
                own = torch.tensor([of.batch])
            numbers.append(own.to(x.device))
            dropped += [n] if isinstance(at.get(letter), int) and len(own) == 1 else []
        positions = {axis: p[rows[axis]] if axis in rows else p for axis, p in of.positions.items()}
        which = Cells(
            place.path,
            self.text,
            place.letters,
            numbers,
            tuple(dropped),
            positions,
            frozenset(at),
            place.step,
            self.find,
            place.part,
            place.values,
        )
        cells = x[which.index()]
        own_cells = cells.squeeze(tuple(dropped)) if dropped else cells
        new = self.become(own_cells, which)
        try:
            fitted = new.to(x).expand(own_cells.shape)
        except RuntimeError:
            raise ShapeError("change.shape", change=self.text, found=tuple(new.shape), allowed=tuple(own_cells.shape)) from None
        x[which.index()] = fitted.reshape(cells.shape)


@dataclass(frozen=True, eq=False)
class FunctionChange(Change):
    """A change by a function of the whole tensor, or of the watched request's part of it, which returns the new one, or None."""

    def apply(self, x: Tensor, place: Place) -> Tensor | None:
        before = described(x)
        new: Any = self.become(x, Cells(place.path, self.text, place.letters, [], (), {}))
        if new is not None and (not isinstance(new, Tensor) or described(new) != before):
            wrong = described(new) if isinstance(new, Tensor) else type(new).__name__
            raise ShapeError("edit.shape", path=place.path, found=wrong, allowed=before)
        return new


@dataclass(frozen=True, eq=False)
class PartChange(FunctionChange):
    """A change by a module, which is a part of the model while it is watched: its taps are recorded below `PATH.name`.

    name: the module's own `name`, or its class' in small letters.
    """

    module: nn.Module | None = None

    @property
    def name(self) -> str:
        return str(getattr(self.module, "name", type(self.module).__name__.lower()))


def function(path: str, f: Function | nn.Module) -> Change:
    """Change the tensors of `path` by f(tensor) -> tensor, or None to leave one as it is. f: a function, or a module, which is recorded."""
    if isinstance(f, nn.Module):
        return PartChange(path, lambda x, which: f(x), path, module=f)
    return FunctionChange(path, lambda x, which: f(x), path)  # type: ignore[arg-type, return-value]


@checked
def zero(path: str, **at: Index) -> Change:
    """Set cells to 0. at: an index for each addressed axis, H=3, T=-1, T=slice(4, None), T="France"."""
    return put(path, 0.0, **at)


@checked
def put(path: str, value: Value, **at: Index) -> Change:
    """Set cells to a number, or to a tensor that broadcasts to their shape, without the axes that one number addresses.

    value: also the path of a tensor made before in the same forward, whose cells at the same places are taken.
    """
    return made(path, at, "=", value, lambda x, v: v.expand_as(x) if v.ndim == 0 else v)


@checked
def times(path: str, factor: Value, **at: Index) -> Change:
    """Multiply cells by a number or tensor, or by those of the tensor at a path."""
    return made(path, at, "*=", factor, lambda x, v: x * v)


@checked
def add(path: str, value: Value, **at: Index) -> Change:
    """Add a number or tensor to cells, or those of the tensor at a path."""
    return made(path, at, "+=", value, lambda x, v: x + v)


@checked
def without(path: str, direction: Tensor, **at: Index) -> Change:
    """Take the part along `direction` out of the last axis of cells: x − (x·u)u, with u the direction at length 1."""
    unit = direction.double() / direction.double().norm()
    return made(path, at, "without", unit, lambda x, u: x.double() - (x.double() @ u)[..., None] * u, wide=True)


@checked
def take(path: str, other: Any, source: At | None = None, **at: Index) -> Change:
    """Set cells to those of another run's tensor of the same path: at the same positions, or at `source`'s. other: a Trace or Records.

    Positions that the other run does not have keep their values, unless T names them.
    """
    text = f"{path}{addressed(at)} = from {getattr(other, 'prompt', None) or type(other).__name__}"
    return Change(path, Taken(other, source or {}), text, at)


class Averages:
    """The means of tensors over all texts and positions of `others`, the records of one or more runs; each is computed once."""

    def __init__(self, others: Any) -> None:
        self.others, self.known = others, dict[str, Tensor]()

    def __getitem__(self, path: str) -> Tensor:
        if path not in self.known:
            flat = [rows_first(s.value.double(), s.dims.split()) for s in self.others.all(path)]
            self.known[path] = torch.cat([f.flatten(0, 1) for f in flat]).mean(0)
        return self.known[path]


@checked
def mean(path: str, others: Any, **at: Index) -> Change:
    """Set cells to the mean that they have over all texts and positions of `others`, the records of one or more runs."""
    averages = others if isinstance(others, Averages) else Averages(others)

    def become(x: Tensor, which: Cells) -> Tensor:
        if {"T", "S"} <= {*which.letters}:
            raise ShapeError("change.mean", change=which.text, path=which.path)
        average = averages[which.path]
        rest = [n for letter, n in zip(which.letters, which.numbers, strict=True) if letter not in ("B", *ALONG)]
        own = average[outer(rest)] if rest else average
        shape = [len(n) if letter not in ("B", *ALONG) else 1 for letter, n in zip(which.letters, which.numbers, strict=True)]
        spread = own.reshape(shape).expand([len(n) for n in which.numbers])
        return spread.squeeze(which.dropped) if which.dropped else spread

    return Change(path, become, f"{path}{addressed(at)} = mean", at)


@dataclass(frozen=True, eq=False)
class Taken:
    """The values of another run's cells. Where a change names positions, one that the other run lacks is an error."""

    other: Any
    source: At

    def __call__(self, x: Tensor, which: Cells) -> Tensor:
        records = self.other.all(which.path)
        if len({s.request for s in records}) > 1:
            raise TraceError("change.several", change=which.text, path=which.path)
        axis = "N" if "N" in which.letters and "T" in records[0].dims.split() else "T"  # here some rows, there all: the head's
        if axis not in which.letters or "S" in which.letters:  # a table of scores grows with each step
            return self.of_step(x, which, [s.value for s in records if s.step == which.step])
        t = which.letters.index(axis)
        table = torch.cat([s.value for s in records], t)
        rows = self.sources(which, table).get("T", which.positions[axis])
        known = rows < table.shape[t]
        if "T" in which.named and not bool(known.all()):
            raise ShapeError("change.beyond", change=which.text, tokens=table.shape[t])
        new = self.cells(table, which, {axis: rows.clamp(max=table.shape[t] - 1)})
        if bool(known.all()):
            return new.to(x)
        shape = [-1 if i == t else 1 for i in range(len(which.letters)) if i not in which.dropped]
        return torch.where(known.to(x.device).view(shape), new.to(x), x)

    def of_step(self, x: Tensor, which: Cells, values: list[Tensor]) -> Tensor:
        """Return the cells of the other run's tensor in the same step, which must have them."""
        if not values:
            raise ShapeError("change.beyond", change=which.text, tokens=0)
        return self.cells(values[0], which, {}).to(x)

    def cells(self, table: Tensor, which: Cells, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the table's cells with the numbers of `which`, but those that `source` or `rows` give."""
        own = {**dict(zip(which.letters, which.numbers, strict=True)), **self.sources(which, table), **rows}
        numbers = [n.to(table.device) for n in own.values()]
        lengths, wanted = tuple(len(n) for n in numbers), tuple(len(n) for n in which.numbers)
        if lengths != wanted or any(len(n) and int(n.max()) >= size for n, size in zip(numbers, table.shape, strict=True)):
            raise ShapeError("change.shape", change=which.text, found=tuple(table.shape), allowed=wanted)
        new = table[outer(numbers)]
        return new.squeeze(which.dropped) if which.dropped else new

    def sources(self, which: Cells, table: Tensor) -> dict[str, Tensor]:
        """Return the numbers of the axes that `source` addresses in the other run's table."""
        numbers = {}
        for letter, index in by_letter(self.source, which.letters, which.path, which.text).items():
            if letter not in which.letters:
                raise ShapeError("change.letter", change=which.text, letter=letter, path=which.path, allowed=" ".join(which.letters))
            size, prompt = table.shape[which.letters.index(letter)], getattr(self.other, "ids", None) or None
            if letter in ALONG:
                numbers[letter] = chosen_rows(index, torch.arange(size), prompt, which.find, which.text)
            else:
                numbers[letter] = chosen_cells(index, size, letter, which.text)
        return numbers


Operator = Callable[[Tensor, Tensor], Tensor]


def made(path: str, at: Mapping[str, Index], sign: str, value: Value, f: Operator, wide: bool = False) -> Change:
    """Return the change f(cells, value) as `sign` says it. A UseError for a number that the tensor's dtype cannot hold."""
    if isinstance(value, str):
        return reading(path, at, sign, value, f)
    text = f"{path}{addressed(at)} {sign} {value if not isinstance(value, Tensor) else f'tensor {tuple(value.shape)}'}"

    def become(x: Tensor, which: Cells) -> Tensor:
        if isinstance(value, Tensor):
            own = value.to(x.device) if wide else value.to(x)
        else:  # float64 until the cells' own dtype takes it: 0.999999 is another number in float32
            hides = value == -math.inf and sign in ("=", "+=") and x.is_floating_point()  # a score that softmax makes 0
            if not hides:
                require_number(value, torch.float64 if sign == "*=" and x.is_floating_point() else x.dtype, which.text)
            own = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device=x.device)
        try:
            return f(x, own)
        except RuntimeError:
            raise ShapeError("change.shape", change=which.text, found=tuple(own.shape), allowed=tuple(x.shape)) from None

    return Change(path, become, text, at)


def reading(path: str, at: Mapping[str, Index], sign: str, reads: str, f: Operator) -> Change:
    """Return the change f(cells, those of the tensor at `reads`)."""

    def become(x: Tensor, which: Cells) -> Tensor:
        assert which.values is not None
        return f(x, which.values.cells(filled(reads, path, which.path), which).to(x))

    return Change(path, become, f"{path}{addressed(at)} {sign} {reads}", at, reads=reads)


def require_number(number: float, dtype: torch.dtype, text: str) -> None:
    """Raise a UseError for a number that `dtype` cannot hold: one beyond its range, or a fraction for integers."""
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        if abs(number) > most:
            raise UseError("change.number", change=text, found=number, allowed=f"{-most:g}..{most:g}")
        return
    least, most = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not math.isfinite(number) or number != int(number) or not least <= int(number) <= most:
        raise UseError("change.number", change=text, found=number, allowed=f"{least}..{most}, {dtype}".replace("torch.", ""))


def outer(numbers: list[Tensor]) -> tuple[Tensor, ...]:
    """Return an index that picks the outer product of each axis' numbers."""
    return tuple(n.view([-1 if i == axis else 1 for i in range(len(numbers))]) for axis, n in enumerate(numbers))


def rows_first(x: Tensor, letters: list[str]) -> Tensor:
    """Return x as [texts, rows, the other axes]."""
    batch, rows = "B" in letters, next((axis for axis in ALONG if axis in letters), None)
    x = x if batch else x[None]
    return x[:, None] if rows is None else x.movedim(letters.index(rows) + (not batch), 1)


def by_letter(at: At, letters: list[str], path: str, text: str) -> Mapping[str, Index]:
    """Return the index of each addressed axis. A ShapeError if one for every axis is given and the tensor has others."""
    if isinstance(at, Mapping):
        return at
    if len(at) != len(letters):
        raise ShapeError("change.axes", change=text, found=len(at), path=path, allowed=" ".join(letters))
    return {letter: index for letter, index in zip(letters, at, strict=True) if index != slice(None)}


def addressed(at: At) -> str:
    """Write the addressed cells: "[H=3, T=4:]", "[0, 1, :]"; "" for all."""
    if not isinstance(at, Mapping):
        return f"[{', '.join(map(written, at))}]"
    return f"[{', '.join(f'{letter}={written(index)}' for letter, index in at.items())}]" if at else ""


def written(index: Index) -> str:
    """Write an index: 3, 4:, 0,2 or "France"."""
    if isinstance(index, slice):
        ends = [index.start, index.stop] + ([] if index.step is None else [index.step])
        return ":".join("" if end is None else str(end) for end in ends)
    return f'"{index}"' if isinstance(index, str) else str(index) if isinstance(index, int) else ",".join(map(str, index))


def as_changes(edit: Any) -> list[Change]:
    """Return the changes of a watch's `edit`: {path: function}, or Changes in the order in which they act. A UseError for anything else."""
    if isinstance(edit, Mapping):
        return [f if isinstance(f, Change) else function(path, f) for path, f in edit.items()]
    changes = [edit] if isinstance(edit, Change) else list(edit or ())
    for c in changes:
        if not isinstance(c, Change):
            raise UseError("change.kind", found=type(c).__name__)
    return changes
