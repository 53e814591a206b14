"""The summands of one cell, by the names of its operands."""

from typing import Any

import torch
from torch import Tensor

Index = tuple[int, ...]
Number = float | Tensor


class Terms:
    """The summands of one cell: the rowwise products of factors, which are float64 columns of equal length, and numbers added to them.

    Terms(x=[1., 2.], weight=[3., 4.]).plus(bias=5.) has the summands [3., 8., 5.] and the sum 16.
    """

    def __init__(self, **factors: Number | list[Any]) -> None:
        rows = {name: column(f) for name, f in factors.items()}
        length = max((len(r) for r in rows.values()), default=0)
        self.factors = {name: r.expand(length) for name, r in rows.items()}
        self.added: dict[str, float] = {}
        self.about: dict[str, float] = {}

    def __repr__(self) -> str:
        """Return one line: Terms(x · weight: 128 products, bias; sum 0.25)."""
        length = max(map(len, self.factors.values()), default=0)
        products = [f"{' · '.join(self.factors)}: {length:,} products"] if self.factors else []
        return f"Terms({', '.join([*products, *self.added])}; sum {self.total():.6g})"

    def plus(self, **added: Number | None) -> "Terms":
        """Add numbers to the products; None is skipped. Returns these terms."""
        self.added |= {name: float(x) for name, x in added.items() if x is not None}
        return self

    def of(self, **about: Number | None) -> "Terms":
        """Note numbers that the factors were made from: the x of a gelu(x), a row's mean. Returns these terms."""
        self.about |= {name: float(x) for name, x in about.items() if x is not None}
        return self

    @property
    def summands(self) -> Tensor:
        """Return the products, row by row, then the added numbers: float64 [n]."""
        products = column([])
        for n, f in enumerate(self.factors.values()):
            products = products * f if n else f
        return torch.cat([products, column([*self.added.values()])])

    def total(self) -> float:
        """Return the sum of the summands: the value of the cell."""
        return float(self.summands.sum())


def column(parts: Tensor | float | list[Any]) -> Tensor:
    """Join numbers and tensors end to end, as one float64 column."""
    columns = parts if isinstance(parts, list) else [parts]
    none = torch.zeros(0, dtype=torch.float64, device="cpu")
    return torch.cat(
        [none]
        + [
            p.detach().to("cpu", torch.float64).reshape(-1)
            if isinstance(p, Tensor)
            else torch.tensor([p], dtype=torch.float64, device="cpu")
            for p in columns
        ]
    )
