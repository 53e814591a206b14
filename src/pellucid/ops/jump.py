"""A jump: a number where it is above its threshold, else 0 (JumpReLU, arXiv 2407.14435); with a threshold of 0 it is ReLU."""

import torch
from torch import Tensor

from pellucid.ops.kinds import OpKind
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms

JUMP = OpKind(
    "jump",
    lambda m: f"{m.x} · [{m.x} > {m.weights[0]}]",
    labels={"x": lambda m: m.x, "open": lambda m: f"[{m.x} > {m.weights[0]}]"},
    template=lambda m: "{x} · {open}",
)


def jump(x: Tensor, threshold: Tensor) -> Tensor:
    """Return x [... F] where it is above threshold [F], else 0."""
    y = torch.where(x > threshold, x, x.new_zeros(()))

    def terms(i: Index) -> Terms:
        return Terms(x=x[i], open=(x[i] > threshold.expand_as(x)[i]).to(x.dtype))

    return note(y, JUMP.name, (x,), (threshold,), terms)
