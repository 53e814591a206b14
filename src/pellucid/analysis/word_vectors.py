"""Rows of the embedding as vectors: sums of words, and the rows nearest to a sum."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.attribution import one_id
from pellucid.api.model import Model


@dataclass(frozen=True)
class Near:
    """A row near a vector. rank: 1 for the nearest.  cosine: between the two."""

    id: int
    piece: str
    rank: int
    cosine: float


def rows(model: Model) -> Tensor:
    """Return the embedding [V D] in float64."""
    return model.module.get_parameter("embed.weight").double()


def combined(model: Model, plus: Sequence[str], minus: Sequence[str] = (), shift: int = 0) -> Tensor:
    """Return the sum of the rows of the words `plus`, less those of `minus`. shift: added to every id, for rows of other pieces."""
    table = rows(model)
    added, taken = ([(one_id(model, word) + shift) % len(table) for word in words] for words in (plus, minus))
    return table[added].sum(0) - table[taken].sum(0)


def nearest_rows(model: Model, vector: Tensor) -> list[Near]:
    """Return every row of the embedding by its cosine with a vector, the nearest first."""
    cosines = torch.nn.functional.normalize(rows(model), dim=-1) @ torch.nn.functional.normalize(vector, dim=0)
    order = cosines.argsort(descending=True, stable=True)
    pieces = model.tokenizer.pieces(order.tolist())
    return [Near(p.id, p.text, n, float(c)) for n, (p, c) in enumerate(zip(pieces, cosines[order], strict=True), 1)]


def place_of(model: Model, near: Sequence[Near], word: str) -> Near:
    """Return the row of a word among rows in order. A UseError if the word is not one piece."""
    own = one_id(model, word)
    return next(one for one in near if one.id == own)
