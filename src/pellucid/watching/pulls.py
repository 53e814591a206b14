"""Why a weight has its gradient: each row's contribution to the gradient of one cell w of a weight.

    dL/dw  =  Σ rows  Σ numbers of the row  ∂y/∂w · δ            y: the output of an op that reads the weight.  δ: dL/dy

∂y/∂w is the op itself, run again with a tangent of 1 in the cell, so no arithmetic stands here a second time. For a product
y[n, i] = Σ_j x[n, j] · w[i, j] it is x[n, j], in column i alone; for a table 1 in the rows of the cell's id; for a norm the normed row.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pellucid.batch.step import Step
from pellucid.watching.cells import ALONG, NOT_HERE, Place
from pellucid.watching.tap import seen_by

if TYPE_CHECKING:
    from pellucid.watching.records import Seen

Layout = tuple[torch.Size, tuple[int, ...], int]  # a tensor's size, its strides, and its offset in the storage


def layout(x: Tensor) -> Layout:
    return x.size(), x.stride(), int(x.storage_offset())


def reads(w: Tensor, parameter: Tensor) -> bool:
    """True if w is the parameter or a view of it. Tied weights are one parameter."""
    start = parameter.storage_offset()
    same = w.untyped_storage()._cdata == parameter.untyped_storage()._cdata
    return same and start <= w.storage_offset() < start + max(parameter.numel(), 1)


@dataclass(frozen=True)
class Reading:
    """One op's reading of its weights. again(*weights): its output once more.  watch: the serial number of the watch that keeps it."""

    again: Callable[..., Tensor]
    weights: tuple[Tensor | None, ...]
    output: Layout
    watch: int

    def derivative(self, parameter: Tensor, cell: tuple[int, ...]) -> Tensor | None:
        """Return the derivative of the output by parameter[cell], strided as the output is. None if the op does not read the parameter."""
        tangents = [None if w is None else self.tangent(w, parameter, cell) for w in self.weights]
        if all(t is None for t in tangents):
            return None
        with seen_by(), torch.enable_grad(), forward_ad.dual_level():  # weights that require gradients: no kernel takes them
            pairs = zip(self.weights, tangents, strict=True)
            weights = [w if w is None or t is None else forward_ad.make_dual(w.detach().requires_grad_(), t) for w, t in pairs]
            tangent = forward_ad.unpack_dual(self.again(*weights)).tangent
        size, strides, _ = self.output
        out = torch.empty_strided(size, strides, dtype=parameter.dtype, device=parameter.device).zero_()
        return out if tangent is None else out.copy_(tangent.detach())

    def tangent(self, w: Tensor, parameter: Tensor, cell: tuple[int, ...]) -> Tensor | None:
        """Return the derivative of an operand by parameter[cell]: of the parameter, of a view, or of a matrix made of several weights."""
        if reads(w, parameter):
            made, start = torch.zeros_like(parameter), int(parameter.storage_offset())
            made[cell] = 1
        elif (maker := self.maker(w)) is not None and (by_weight := maker.derivative(parameter, cell)) is not None:
            made, start = by_weight, maker.output[2]
        else:
            return None
        return made.detach().as_strided(w.size(), w.stride(), w.storage_offset() - start)

    def maker(self, w: Tensor) -> "Reading | None":
        """Return the reading of the op that made an operand of several weights. None if the operand is no such matrix."""
        mark = w.untyped_storage().__dict__.get("pellucid", {}).get(self.watch)
        return None if mark is None else mark.reading

    def depends(self, parameter: Tensor) -> bool:
        """True if the op reads the parameter, or a matrix that was made of it."""
        read = [w for w in self.weights if w is not None]
        makers = (self.maker(w) for w in read)
        return any(reads(w, parameter) for w in read) or any(m is not None and m.depends(parameter) for m in makers)


@dataclass(frozen=True)
class Pulls:
    """What a record knows of the weights that its op read. view: the recorded tensor in the op's output.  place: of its rows."""

    reading: Reading
    view: Layout
    place: Place

    def derivative(self, parameter: Tensor, cell: tuple[int, ...]) -> Tensor | None:
        """Return the derivative of the recorded tensor by parameter[cell]. None if the op does not read the parameter."""
        output = self.reading.derivative(parameter, cell)
        if output is None:
            return None
        size, strides, start = self.view
        x = output.as_strided(size, strides, start - self.reading.output[2])
        return x[self.place.part] if self.place.part else x


@dataclass(frozen=True)
class Use:
    """One use of a weight's cell in a forward: rows, and the contribution of each to the gradient.

    path: of the tensor that the op made.  forward: the number of the forward, from 0.  texts, positions, ids [n]: of each row, its text in
    the batch, its position there, and its token, -1 where unknown.  columns: the cells of a row that depend on the weight's, c indices.
    x [n c]: the derivative of each by the weight's cell; of a product, its input.  delta [n c]: the loss's derivative by each.
    """

    path: str
    op: str | None
    forward: int
    texts: Tensor
    positions: Tensor
    ids: Tensor
    columns: list[tuple[int, ...]]
    x: Tensor
    delta: Tensor

    @property
    def product(self) -> Tensor:
        """Return each row's contribution [n]: the sum over its columns of x · delta."""
        return (self.x * self.delta).sum(-1)

    def total(self) -> float:
        """Return the use's sum over its rows."""
        return float(self.product.sum())


def uses(records: "Iterable[Seen]", parameter: Tensor, cell: tuple[int, ...]) -> list[Use]:
    """Return the uses of parameter[cell] among the records of a watch with gradients and terms, after the backward.

    Their totals add up to the gradient that the backward added to the parameter, summed over all forwards of the watch. Rows of padding
    are left out, unless one contributes.
    """
    return [use for seen in records if seen.pulls is not None and (use := use_of(seen, seen.pulls, parameter, cell)) is not None]


def use_of(seen: "Seen", pulls: Pulls, parameter: Tensor, cell: tuple[int, ...]) -> Use | None:
    """Return one record's use of parameter[cell]. None if its op does not read the parameter, or the loss does not depend on it."""
    if seen.grad is None or (by_weight := pulls.derivative(parameter, cell)) is None:
        return None
    letters = pulls.place.letters
    axes = [a for a in letters if a == "B"] + [a for a in letters if a in ALONG][:1]
    x, delta = (by_row(t, letters, axes) for t in (by_weight, seen.grad))
    columns = (x != 0).any(0).nonzero()[:, 0]
    texts, positions, ids = row_names(pulls.place, axes, tuple(seen.shape))
    x, delta = x[:, columns], delta[:, columns]
    kept = (positions != NOT_HERE) | ((x * delta) != 0).any(-1)
    rest = [n for n, a in zip(seen.shape, letters, strict=True) if a not in axes]
    indices = torch.stack(torch.unravel_index(columns, rest), -1).tolist() if rest else [()] * len(columns)
    named = texts[kept], positions[kept], ids[kept]
    return Use(seen.path, seen.op, seen.step, *named, [tuple(i) for i in indices], x[kept], delta[kept])


def by_row(x: Tensor, letters: list[str], axes: list[str]) -> Tensor:
    """Return a tensor as rows along `axes` and their other numbers, [n c] in float64."""
    front = x.permute(*(letters.index(a) for a in axes), *(i for i, a in enumerate(letters) if a not in axes))
    return front.reshape(front.shape[: len(axes)].numel(), -1).detach().to("cpu", torch.float64)


def row_names(place: Place, axes: list[str], shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the text, position and token id of each row along `axes`, [n] each. A position is -1 for padding, an id where unknown."""
    sizes = {a: shape[place.letters.index(a)] for a in axes}
    if not (along := [a for a in axes if a in ALONG]):
        texts = torch.arange(sizes.get("B", 1))
        return texts, torch.full_like(texts, NOT_HERE), torch.full_like(texts, NOT_HERE)
    axis = along[0]
    if not place.call.steps:  # a part that runs before the step is made: plain rows
        length = place.call.sizes["T"] if axis == "N" else sizes[axis]
        batch = place.call.sizes["B"]
        place = replace(place, call=replace(place.call, steps=(Step(torch.arange(length).expand(batch, length)),)))
    if axis == "N" and "B" in axes:  # the rows of T that a step wants, of every text
        positions, texts = (t[:, place.rows] for t in place.along("T"))
    else:
        positions, texts = place.along(axis)
    positions, texts = (t.expand(sizes.get("B", 1), -1).flatten().cpu() for t in (positions, texts))
    ids = torch.full_like(positions, NOT_HERE)
    for n in texts.unique().tolist():
        if (prompt := place.prompt(axis, n)) is not None:
            own = (texts == n) & (positions >= 0) & (positions < len(prompt))
            ids[own] = torch.tensor(prompt, dtype=ids.dtype)[positions[own]]
    return texts, positions, ids
