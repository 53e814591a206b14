"""Distillation: the student's distribution at each target is drawn to the teacher's, which reads the same rows (arXiv 1503.02531).

    τ²·Σ_v p(v)·(log p(v) − log q(v))        p, q: teacher and student at temperature τ, softmax(logits / τ)

With `top`, p is the teacher's distribution over its k likeliest ids alone, and q the student's over all of them, so that what the student
gives to other ids is taken back.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.ops import wide
from pellucid.training.criterion import Criterion, Judged
from pellucid.training.objectives import IGNORED, Batch
from pellucid.training.recipe_tables import DistilSettings
from pellucid.watching.tap import seen_by


def divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0, top: int | None = None) -> Tensor:
    """Return τ²·KL(teacher ‖ student) of each row, [rows]. teacher, student: logits [rows V].  top: of the teacher's ids, None for all."""
    logq = (student if temperature == 1 else student / temperature).log_softmax(-1)  # no table of x / 1
    teacher = teacher if temperature == 1 else teacher / temperature
    if top is not None and top < teacher.shape[-1]:
        teacher, ids = teacher.topk(top)
        logq = logq.gather(-1, ids)
    logp = teacher.log_softmax(-1)
    return temperature**2 * nn.functional.kl_div(logq, logp, reduction="none", log_target=True).sum(-1)


def tables(settings: DistilSettings, ids: int) -> int:
    """Return how many tables of rows × ids the loss holds at most: both models' logits and what the divergence makes of them."""
    return (7 if settings.top is None or settings.top >= ids else 3) + (settings.temperature != 1)


class Distillation(Criterion):
    """The mean divergence over the targets that carry loss. teacher: a frozen model of the same ids.  digest: of its weights.

    Its figures are the cross-entropy of the targets themselves, in nats, and the share of the rows where both find the same id likeliest.
    """

    reached, figures = "card.texts.distilled", ("nats", "agreed")

    def __init__(self, settings: DistilSettings, teacher: nn.Module, digest: str = "") -> None:
        self.settings, self.teacher = settings, teacher.requires_grad_(False).eval()
        given: dict[str, Any] = {f"distil.{name}": value for name, value in vars(settings).items() if name != "teacher"}
        self.identity = given | {"teacher": digest}

    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        targets = batch.targets.flatten()
        real = targets != IGNORED
        with seen_by(), torch.no_grad():  # a watch records the student alone
            teacher = self.teacher(*batch.inputs).flatten(0, 1)[real]
        student = model(*batch.inputs).flatten(0, 1)[real]
        ids = min(teacher.shape[-1], student.shape[-1])  # a table may have rows beyond the tokenizer's ids
        teacher, student = teacher[:, :ids], student[:, :ids].to(wide(student.dtype))
        with torch.no_grad():
            nats = nn.functional.cross_entropy(student, targets[real])
            agreed = (student.argmax(-1) == teacher.argmax(-1)).to(student).mean()
        loss = divergence(teacher, student, self.settings.temperature, self.settings.top).mean()
        return Judged(loss, {"nats": float(nats), "agreed": float(agreed)})
