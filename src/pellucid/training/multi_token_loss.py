"""The loss of a model that trains with modules for multi-token prediction (nn/multi_token.py; arXiv 2412.19437, equations 24 and 25).

    loss  =  L + λ/D · Σ_k L_k          L_k  =  1/T · Σ_i −log P_k(t_{i+k+1})          k = 1 … D,  T: the targets of the model itself

    rows of two documents       a b c d | e f g
    module 1 reads beside them  b c d d | f g g        a document's last row is fed its own token
    and predicts                c d e . | g h .        and has no target, since its token lies beyond the document; e, h: their last tokens

Losses of all modules are divided by the same T, as in the paper, so a step's loss is one mean over its targets in any micro-batches. A
target that carries no loss for the model, of a prompt say, carries none for a module.
"""

from collections.abc import Sequence

import torch
from torch import nn

from pellucid.errors import TrainError
from pellucid.nn.transformer import Decoder
from pellucid.ops import wide
from pellucid.training.criterion import Criterion, CrossEntropy, Figures, Judged, logits_loss, loss_of, targets_in
from pellucid.training.objectives import Batch, Document, Objective
from pellucid.training.recipe_parts import MultiTokenSettings
from pellucid.training.targets import ahead

PLACE = "multi_token"
"""The path of a model's modules, and the name of their losses in a log: multi_token.0, and so on."""


class MultiTokenLoss(CrossEntropy):
    """The cross-entropy of a model, beside which its modules' losses are made small. Its figures are these, each by its module's path.

    The loss itself is the model's own, as without modules.
    """

    def __init__(self, settings: MultiTokenSettings, smoothing: float = 0.0) -> None:
        super().__init__(smoothing)
        self.settings = settings
        self.figures = tuple(f"{PLACE}.{k}" for k in range(settings.depth))
        self.identity = {f"multi_token.{name}": value for name, value in vars(settings).items()}

    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        assert isinstance(model, Decoder)
        own, count, step = loss_of(model, batch, self.smoothing, share), targets_in(batch), batch.inputs[1]
        if model.multi_token is None:  # a finished model, whose modules are kept apart
            return Judged(own, {})
        x, added, figures = step.last, own.new_zeros(()), Figures()
        for k, module in enumerate(model.multi_token):
            following, targets = ahead(batch, k + 1)
            x, logits = module(model, x, following, step)
            figures[f"{PLACE}.{k}"] = 0.0
            if real := targets_in(Batch(batch.inputs, targets)):
                part = real / count
                factor = self.settings.weight / self.settings.depth * part
                given = float(torch.full((), share, dtype=wide(logits.dtype)) * factor)  # as the backward pass rounds it
                loss = logits_loss(module, "loss", logits, targets, self.smoothing, given)
                added, figures[f"{PLACE}.{k}"] = added + loss * factor, float(loss.detach()) * part
        step.last = None
        return Judged(own, figures, added)

    def measure(self, model: nn.Module, objective: Objective, parts: Sequence[Sequence[Document]]) -> tuple[float, Figures]:
        """Return the losses without smoothing."""
        return Criterion.measure(MultiTokenLoss(self.settings), model, objective, parts)


def require_targets(settings: MultiTokenSettings, path: object, longest: int) -> None:
    """Raise TrainError if no row is long enough for the last module to have a target. longest: the most positions of a document."""
    if settings.depth >= longest:
        raise TrainError("recipe.field", path=path, field="multi_token.depth", found=settings.depth, allowed=f"int 1 … {longest - 1}")
