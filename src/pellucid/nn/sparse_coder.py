"""A sparse coder of one tensor: a sparse autoencoder in place, or a transcoder (arXiv 2309.08600, 2406.11944).

coder = SparseCoder.load("folder")                                     # W_enc, b_enc, W_dec, b_dec, threshold
with pellucid.watch(model, edit={"layers.2.out": coder}) as seen:      # a part of the model: recorded, changed and swept like any
    model(ids)
seen["layers.2.out.coder.features"]
"""

import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.nn.linear import Linear
from pellucid.ops.jump import jump
from pellucid.watching.tap import tap


class SparseCoder(nn.Module):
    """x [B T D] -> its reconstruction from features [B T F].

    error: add what the reconstruction leaves out, so that x stays as it is until a feature is changed.
    """

    name = "coder"

    def __init__(self, width: int, features: int, error: bool = True) -> None:
        super().__init__()
        self.encode, self.decode = Linear(width, features), Linear(features, width)
        self.threshold = nn.Parameter(torch.zeros(features))
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        made = jump(tap(self.encode(x), "pre: B T F"), self.threshold)
        features = tap(made, "features: B T F")
        decoded = tap(self.decode(features), "decoded: B T D")
        if not self.error:
            return decoded
        rest = x - (decoded if features is made else self.decode(made))  # of the features as they were made
        return ops.add(decoded, tap(rest, "error: B T D"))
