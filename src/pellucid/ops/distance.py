"""Scores by distance: each query is multiplied by a key that depends only on the distance (Transformer-XL, arXiv 1901.02860)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.ops.kinds import OpKind
from pellucid.ops.sinusoid import sinusoids
from pellucid.watching.tap import note

DISTANCES = OpKind("distances")


def distances(q: Tensor, weight: Tensor, length: int) -> Tensor:
    """Multiply q [B T H K] by the keys of distances 0 ... length - 1. Returns [B H T length].

    The keys are weight [(H K) D] times the distances' sinusoids. FLOPs: 2·H·K·(D + length) a row; the keys of distances that earlier
    steps used are counted there, and do not change.
    """
    waves = sinusoids(torch.arange(length, device=q.device)[None], weight.shape[1], q.dtype)[0]
    keys = F.linear(waves, weight).unflatten(-1, (q.shape[2], -1))
    y = torch.einsum("bthk,shk->bhts", q, keys)
    return note(y, DISTANCES.name, (q,), (weight,), None, 2 * q.shape[0] * q.shape[1] * weight.shape[0] * (weight.shape[1] + length))
