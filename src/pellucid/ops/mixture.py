"""Sums of values by weights that are there as a table: pattern · v. `attend` has the same sum inside."""

import torch
from torch import Tensor

from pellucid.ops.kinds import OpKind
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms

MIXTURE = OpKind("mixture", lambda m: f"{m.inputs[0]} · {m.inputs[1]}", product=True)


def mixture(pattern: Tensor, v: Tensor) -> Tensor:
    """Sum values v [B S H K] by the weights pattern [B H T S]. Returns z [B T H K]. FLOPs: 2·B·H·T·S·K."""

    def terms(i: Index) -> Terms:
        b, t, h, k = i
        return Terms(pattern=pattern[b, h, t], v=v[b, :, h, k])

    z = torch.einsum("bhts,bshk->bthk", pattern, v)
    return note(z, MIXTURE.name, (pattern, v), (), terms, 2 * pattern.numel() * v.shape[-1])
