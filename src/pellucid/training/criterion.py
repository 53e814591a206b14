"""What a step of training makes small: a mean over the targets of its batch, or over its pairs of answers.

A step's batch is read in parts, whose gradients are added. Each counts by its share of the step's units, so the step's loss is a mean over
these, and not of the parts' means.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pellucid.ops import tapped_loss, wide
from pellucid.training.balance import Balance
from pellucid.training.dropout import Dropout
from pellucid.training.logits_loss import LogitsLoss
from pellucid.training.objectives import IGNORED, Batch, Document, Objective
from pellucid.training.targets import real_rows
from pellucid.watching.tap import after, here

Figures = dict[str, float]
"""Means over a batch's units that the log has beside the loss, by their names there."""

LOGPROB_TABLES = 3
"""Tables of rows × ids in float32 that the log-probabilities of targets hold at most: themselves, their gradients and the logits'."""


class Judged(NamedTuple):
    """A batch's loss, the mean over its units, and the figures that its log line has. auxiliary: a loss that is made small in addition."""

    loss: Tensor
    figures: Figures
    auxiliary: Tensor | float = 0.0


class Criterion(ABC):
    """The loss of a batch. identity: what it depends on besides the model and the batch, by the names that an error gives.

    figures: the names of what `judge` gives beside the loss.
    reached: the key of the sentence that a card says of what is held out, with the loss and the figures.
    """

    identity: Mapping[str, Any] = {}
    figures: tuple[str, ...] = ()
    reached = "card.texts.reached"

    def batches(self, model: nn.Module, objective: Objective, parts: Sequence[Sequence[Document]], step: int) -> list[Batch]:
        """Return the batch of each part of a step. step: the number of steps before it."""
        return [objective.batch(part) for part in parts]

    def texts(self, numbers: list[int]) -> list[int]:
        """Return the document of each text of a part's batch. numbers: the part's documents."""
        return numbers

    def noted(self, batches: Sequence[Batch]) -> dict[str, object]:
        """Return what else the log line of a step on these batches has, {} for most; it is not shown as progress."""
        return {}

    def units(self, batch: Batch) -> int:
        """Return the number of units that the loss is a mean over: targets that carry loss."""
        return targets_in(batch)

    @abstractmethod
    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        """Return the loss of `model` on a batch. share: what the loss is multiplied by before it is differentiated."""

    @torch.no_grad()
    def measure(self, model: nn.Module, objective: Objective, parts: Sequence[Sequence[Document]]) -> tuple[float, Figures]:
        """Return the mean loss over the units of documents that are held out of training, and the figures."""
        made = [objective.batch(part) for part in parts]
        counts = [self.units(batch) for batch in made]
        total, figures = 0.0, Figures()
        for batch, n in zip(made, counts, strict=True):
            judged = self.judge(model, batch)
            total += float(judged.loss) * n
            figures = added(figures, {name: value * n for name, value in judged.figures.items()})
        return total / sum(counts), {name: value / sum(counts) for name, value in figures.items()}


class CrossEntropy(Criterion):
    """-log p(target). smoothing: the part shared by all ids."""

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        return Judged(loss_of(model, batch, self.smoothing, share), {})

    def measure(self, model: nn.Module, objective: Objective, parts: Sequence[Sequence[Document]]) -> tuple[float, Figures]:
        """Return the loss without smoothing."""
        return Criterion.measure(PLAIN, model, objective, parts)


PLAIN = CrossEntropy()


class StepPart(NamedTuple):
    """A part of a step, by its share of the units: its loss, what is differentiated, and its figures."""

    loss: Tensor
    differentiated: Tensor
    figures: Figures


def loss_of(model: nn.Module, batch: Batch, smoothing: float = 0.0, share: float = 1.0) -> Tensor:
    """Return the mean of -log p(target) over real targets; `smoothing` is the part shared by all V ids (arXiv 1512.00567).

    share: what the loss is multiplied by before it is differentiated.  A watch of the model has its parts under the path `loss`.
    """
    return logits_loss(model, "loss", model(*batch.inputs), batch.targets, smoothing, share)


def logits_loss(part: nn.Module, path: str, logits: Tensor, targets: Tensor, smoothing: float, share: float) -> Tensor:
    """Return the mean loss of logits [B T V] that a part of a model made, for targets [B T]. path: of the loss within the part."""
    unread = torch.is_grad_enabled() and not here.watches
    loss = LogitsLoss.apply(logits.flatten(0, 1), targets.flatten(), smoothing, share, unread)
    with after(part, path, None):
        return tapped_loss(loss, logits, targets, smoothing, IGNORED)


def targets_in(batch: Batch) -> int:
    """Return the number of targets that carry loss."""
    return int((batch.targets != IGNORED).sum())


def losses(
    criterion: Criterion, model: nn.Module, parts: list[Batch], balance: Balance, dropout: Dropout | None = None, units: int | None = None
) -> Iterator[StepPart]:
    """Yield each part of a step; what is differentiated has its part of the routers' auxiliary loss, too.

    units: of the step, if these are the parts of one of several ranks.
    """
    counts, dropout = [criterion.units(part) for part in parts], dropout or Dropout(nn.Module(), 0)
    total = sum(counts) if units is None else units
    for micro, (part, count) in enumerate(zip(parts, counts, strict=True)):
        share = count / total
        real = partial(real_rows, part)
        with dropout.drawn(micro), balance.counting(real):
            judged = criterion.judge(model, part, share)
        loss = judged.loss * share
        figures = {name: value * share for name, value in judged.figures.items()}
        with dropout.drawn(micro):  # blocks may run again in the backward pass
            yield StepPart(loss, loss + (judged.auxiliary + balance.loss(real)) * share, figures)


def added(sums: Figures, new: Figures) -> Figures:
    """Return figures with those of another part added."""
    return {name: sums.get(name, 0.0) + value for name, value in new.items()}


def text_sums(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return Σ log p(target) of each text of a packed batch, [texts], and the number of its targets. logits: [1 T V]."""
    logprobs = target_logprobs(logits, batch)
    return summed(logprobs, batch), summed((batch.targets.flatten() != IGNORED).to(logprobs.dtype), batch)


def target_logprobs(logits: Tensor, batch: Batch) -> Tensor:
    """Return log p(target) of each row, [T], 0 where there is no target. logits: [1 T V]."""
    logits = logits.to(wide(logits.dtype))
    return -nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="none")


def summed(of_rows: Tensor, batch: Batch) -> Tensor:
    """Return the sum over the rows of each text of a packed batch, [texts]. of_rows: [T]."""
    return torch.stack([part.sum() for part in of_rows.split([span.stop - span.start for span in batch.inputs[-1].spans])])
