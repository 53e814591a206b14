"""The cross-entropy of narrow logits: a few rows at a time are widened, so that float32 logits of all rows never exist at once.

    bytes of a logit                  logits   log-probabilities   their gradients   logits' gradient
    widened all at once                    4                   4                 4                  4
    bfloat16, a few rows at a time         2                                                        2

Each row's numbers are those of torch's cross-entropy of float32 logits: a row knows nothing of the others. What is widened lies in the same
memory for all rows: in memory of its own each time, C's heap grew by 0.4 GB at 4,096 rows of 50,304 ids.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.counting.training_memory import BUFFERS, ROWS
from pellucid.ops import wide
from pellucid.training.objectives import IGNORED


def widened(logits: Tensor, targets: Tensor, count: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield the numbers of a few rows of logits [N V] that have a target, and `count` matrices of float32 at least, the first their logits.

    The matrices are the same memory each time.
    """
    real = (targets != IGNORED).nonzero()[:, 0]
    buffers = [logits.new_empty(min(ROWS, len(real)), logits.shape[1], dtype=wide(logits.dtype)) for _ in range(count)]
    for rows in real.split(ROWS):
        own = [b[: len(rows)] for b in buffers]
        own[0].copy_(logits[rows])
        yield rows, own


class NarrowLoss(torch.autograd.Function):
    """The mean loss of logits [N V] over the rows that have a target, [N]; the others are IGNORED, and are not read."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        loss = logits.new_zeros((), dtype=wide(logits.dtype))
        for rows, (x, logprobs) in widened(logits, targets, 2):
            torch.log_softmax(x, 1, out=logprobs)
            nll = F.nll_loss(logprobs, targets[rows], reduction="sum")
            loss += (1 - smoothing) * nll - smoothing / logits.shape[1] * logprobs.sum() if smoothing else nll
        return loss / (targets != IGNORED).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        out = torch.zeros_like(logits)
        each = gradients[0] / (targets != IGNORED).sum()
        shared = each * (ctx.smoothing / logits.shape[1])
        for rows, (x, logprobs, of_logprobs) in widened(logits, targets, BUFFERS):
            torch.log_softmax(x, 1, out=logprobs)
            of_logprobs.copy_(-shared)
            of_logprobs[torch.arange(len(rows), device=rows.device), targets[rows]] += -(each * (1 - ctx.smoothing))
            torch.ops.aten._log_softmax_backward_data.out(of_logprobs, logprobs, 1, x.dtype, out=x)
            out[rows] = x.to(out.dtype)
        return out, None, None
