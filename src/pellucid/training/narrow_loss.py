"""The cross-entropy of narrow logits: a few rows at a time are widened, so that float32 logits of all rows never exist at once.

    bytes of a logit                  logits   log-probabilities   their gradients   logits' gradient
    widened all at once                    4                   4                 4                  4
    bfloat16, a few rows at a time         2                                                        2

Each row's numbers are those of torch's cross-entropy of float32 logits: a row knows nothing of the others.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.ops import wide
from pellucid.training.objectives import IGNORED

ROWS = 64  # at once: 13 MB of float32 numbers at 50,000 ids


def total(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the sum of the losses of rows [n V], in float32 at least."""
    return F.cross_entropy(logits.to(wide(logits.dtype)), targets, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")


class NarrowLoss(torch.autograd.Function):
    """The mean loss of logits [N V] over the rows that have a target, [N]; the others are IGNORED, and are not read."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        real = (targets != IGNORED).nonzero()[:, 0]
        sums = [total(logits[rows], targets[rows], smoothing) for rows in real.split(ROWS)]
        return torch.stack(sums).sum() / len(real)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        out = torch.zeros_like(logits)
        real = (targets != IGNORED).nonzero()[:, 0]
        for rows in real.split(ROWS):
            with torch.enable_grad():
                x = logits[rows].to(wide(logits.dtype)).requires_grad_()
                loss = total(x, targets[rows], ctx.smoothing)
            (own,) = torch.autograd.grad(loss, x, gradients[0] / len(real))
            out[rows] = own.to(out.dtype)
        return out, None, None
