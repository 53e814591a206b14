"""The cross-entropy of logits, a few rows at a time: log-probabilities of all rows never exist at once, nor wide copies of narrow logits.

    tables of all rows              logits   log-probabilities   their gradients   logits' gradient
    torch, in float32                    4                   4                 4                  4
    a few rows at a time                 4                                                           in the logits' own memory
    bfloat16, a few rows at a time       2                                                           in the logits' own memory

Each row's numbers are those of torch's cross-entropy of float32 logits: a row knows nothing of the others. A row's gradient is made in the
forward, while the row is in the processor's cache, and takes the place of its logits, unless a watch reads those afterwards. What the loss
is multiplied by before it is differentiated is therefore given beforehand.

Few rows lie in the same memory for all rows: in memory of its own each time, C's heap grew by 0.4 GB at 4,096 rows of 50,304 ids.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.counting.training_extra import ROWS
from pellucid.ops import wide
from pellucid.training.objectives import IGNORED


def parts(logits: Tensor, targets: Tensor) -> Iterator[tuple[slice | Tensor, Tensor, Tensor, Tensor]]:
    """Yield a few rows of logits [N V] with a target: which, and matrices of float32 at least: the logits, and two to write to.

    Of narrow logits they are rows with a target alone, and matrices are the same memory each time. Of others they lie one after another,
    and the first matrix is the logits' own memory; parts without any target are left out.
    """
    dtype, real = wide(logits.dtype), targets != IGNORED
    narrow = dtype != logits.dtype
    given = real.nonzero()[:, 0]
    numbers = given.div(ROWS, rounding_mode="floor").unique().tolist()
    chosen = given.split(ROWS) if narrow else [slice(i * ROWS, (i + 1) * ROWS) for i in numbers]
    most = min(ROWS, len(given) if narrow else len(logits))
    first, second, third = (logits.new_empty(most if narrow or n else 0, logits.shape[1], dtype=dtype) for n in range(3))
    for rows in chosen:
        count = len(targets[rows])
        x = first[:count].copy_(logits[rows]) if narrow else logits[rows]
        yield rows, x, second[:count], third[:count]


class LogitsLoss(torch.autograd.Function):
    """The mean loss of logits [N V] over the rows that have a target, [N]; the others are IGNORED.

    smoothing: see `loss_of`.  factor: of the loss in what is differentiated.  over: the gradient may take the place of the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, factor: float, over: bool) -> Tensor:
        x, ids, real = logits.detach(), targets.clamp(min=0)[:, None], targets != IGNORED
        count, vocab, dtype = real.sum(), logits.shape[1], wide(logits.dtype)
        narrow, given = dtype != x.dtype, x.new_full((), factor, dtype=dtype)
        own, every = (x.new_zeros(len(x), dtype=dtype) for _ in range(2))  # log p of each row's target, and the sum over all ids
        sums = x.new_zeros((), dtype=dtype)
        # torch's order of rounding; narrow logits' is that of the first runs in bfloat16
        shares = [given / count * s if narrow else given * s / count for s in (1 - smoothing, smoothing / vocab)]
        of_own, of_every = (torch.where(real, -share, 0)[:, None] for share in shares)
        gradient = (x if over else torch.empty_like(x)) if ctx.needs_input_grad[0] else None
        for rows, few, logprobs, of_logprobs in parts(x, targets):
            torch.log_softmax(few, 1, out=logprobs)
            if narrow:
                nll = F.nll_loss(logprobs, targets[rows], reduction="sum")
                sums += (1 - smoothing) * nll - smoothing / vocab * logprobs.sum() if smoothing else nll
            else:
                own[rows] = logprobs.gather(1, ids[rows])[:, 0]
                every[rows] = logprobs.sum(1) if smoothing else 0
            if gradient is not None:
                of_logprobs.copy_(of_every[rows]) if smoothing else of_logprobs.zero_()
                of_logprobs.scatter_add_(1, ids[rows], of_own[rows])
                to = few if narrow else gradient[rows]
                torch.ops.aten._log_softmax_backward_data.out(of_logprobs, logprobs, 1, dtype, out=to)
                if narrow:
                    gradient[rows] = few.to(x.dtype)
        if gradient is not None:
            gradient.index_fill_(0, (~real).nonzero()[:, 0], 0)
        ctx.save_for_backward(gradient, given)
        if narrow:
            return sums / count
        loss = F.nll_loss(own[:, None], torch.where(real, 0, IGNORED), ignore_index=IGNORED)
        return (1 - smoothing) * loss + (-every)[real].mean() * (smoothing / vocab) if smoothing else loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient, given = ctx.saved_tensors
        if not torch.equal(gradients[0], given):  # another factor than was said, so the bits of a gradient that is made of it are others
            gradient = gradient * (gradients[0] / given).to(gradient.dtype)
        return gradient, None, None, None, None
