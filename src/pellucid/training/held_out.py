"""Documents that are not trained on, whose loss tells whether what is learnt holds for others."""

from collections.abc import Sequence

from torch import nn

from pellucid.training.criterion import PLAIN, Criterion
from pellucid.training.objectives import Document, Objective


class HeldOut:
    """Documents that are not trained on, and how often their loss is logged. every: steps.  batch: rows of the objective."""

    def __init__(self, objective: Objective, documents: Sequence[Document], every: int, batch: int, criterion: Criterion = PLAIN) -> None:
        self.objective, self.every, self.criterion = objective, every, criterion
        self.parts = objective.groups(documents, batch)

    def loss(self, model: nn.Module) -> float:
        """Return the mean of -log p(target) over all their targets, without smoothing, or of another criterion's loss."""
        return self.criterion.measure(model, self.objective, self.parts)[0]

    def entry(self, model: nn.Module) -> dict[str, float]:
        """Return what the log has of them: the loss, and the criterion's figures."""
        loss, figures = self.criterion.measure(model, self.objective, self.parts)
        return {"held_out": loss, **{f"held_out_{name}": value for name, value in figures.items()}}
