"""Additive attention (arXiv 1409.0473): a score is w · tanh(q + k), where a transformer's is q · k. For comparison; no family has it."""

import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.attention import Attention
from pellucid.nn.linear import Linear
from pellucid.watching.tap import tap


class AdditiveAttention(nn.Module):
    """x [B T D] -> [B T D], as Attention, whose projections it shares. Every pair of a query and a key has a row of K numbers of its own.

    w: the vector that makes a score of them, one for all heads; it is drawn, since no training made it.  bent: False leaves out tanh.
    """

    axes = {"w": "1 K"}

    def __init__(self, own: Attention, bent: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o, self.width = own.q, own.k, own.v, own.o, own.width
        self.bent, self.groups = bent, own.q.out_features // own.k.out_features
        like = own.q.weight
        self.w = Linear(own.width, 1, False)
        drawn = torch.randn(1, own.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.w.weight = nn.Parameter(drawn.to(like.device, like.dtype), requires_grad=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q = tap(self.q(x).unflatten(-1, (-1, self.width)), "q: B T H K")
        k = tap(self.k(x).unflatten(-1, (-1, self.width)), "k: B T G K")
        v = tap(ops.identity(k) if self.v is None else self.v(x).unflatten(-1, (-1, self.width)), "v: B T G K")
        if self.groups > 1:
            k, v = k.repeat_interleave(self.groups, 2), v.repeat_interleave(self.groups, 2)
        pairs = tap(ops.add(q[:, :, None], k[:, None]), "pairs: B T S H K")
        hidden = tap(ops.tanh(pairs), "hidden: B T S H K") if self.bent else pairs
        scores = tap(self.w(hidden)[..., 0].permute(0, 3, 1, 2), "scores: B H T S")
        later = step.positions[:, None, None, :] > step.positions[:, None, :, None]
        pattern = tap(ops.softmax(scores.masked_fill(later, float("-inf"))), "pattern: B H T S")
        z = tap(ops.mixture(pattern, v), "z: B T H K")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]
