"""What a product of two thin matrices loses of a matrix: singular values, the error by them, and the error as it is."""

from dataclasses import dataclass

import torch

from pellucid.api.model import Model


@dataclass(frozen=True)
class Loss:
    """A matrix and its low-rank twin. dropped: the sum of the squares of the singular values beyond the rank.  error: ‖W − BA‖².

    size: ‖W‖², the sum of the squares of all.  numbers, before: weights of the twin and of the matrix.
    """

    dropped: float
    error: float
    size: float
    numbers: int
    before: int

    @property
    def gap(self) -> float:
        """Return how far the error is from what was dropped, as a share of the size."""
        return abs(self.error - self.dropped) / self.size

    @property
    def share(self) -> float:
        """Return the twin's weights in percent of the matrix's."""
        return 100 * self.numbers / self.before


def singular_values(model: Model, path: str) -> list[float]:
    """Return the singular values of the matrix at a path of the model, the largest first."""
    values: list[float] = torch.linalg.svdvals(model.module.get_submodule(path).weight.detach().double()).tolist()  # type: ignore[operator]
    return values


def loss(model: Model, thin: Model, path: str, values: list[float], rank: int) -> Loss:
    """Compare the matrix at a path with its twin in `thin`. values: its singular values.  rank: of those that the twin keeps."""
    full, twin = (one.module.get_submodule(path) for one in (model, thin))
    w = full.weight.detach().double()  # type: ignore[operator]
    if hasattr(twin, "widen"):
        b, a = (getattr(twin, name).weight.detach().double() for name in ("widen", "narrow"))
        product, numbers = b @ a, a.numel() + b.numel()
    else:
        product, numbers = w, w.numel()
    squares = [x * x for x in values]
    return Loss(sum(squares[rank:]), float((w - product).square().sum()), sum(squares), numbers, w.numel())
