"""A gated short convolution over time, in attention's place (LFM2, arXiv 2511.23404).

It stores the rows that it sums, so its KV cache is that of a layer with a window of a few tokens.
"""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.kv_cache import KVCache
from pellucid.batch.step import Step
from pellucid.nn.linear import Linear
from pellucid.watching.tap import tap


class ShortConv(nn.Module):
    """x [B T D] -> [B T D]: a gate c times the sum of each channel's last J rows of b · x. All three are products of the same rows."""

    axes = {"b": "D D", "c": "D D", "x": "D D", "o": "D D", "kernel": "J D", "kernel_bias": "D"}
    reads_source: tuple[str, ...] = ()

    def __init__(self, cfg: c.Config, spec: c.ShortConv) -> None:
        super().__init__()
        self.b, self.c, self.x, self.o = (Linear(cfg.width, cfg.width, spec.bias) for _ in range(4))
        self.kernel = nn.Parameter(torch.ones(spec.window, cfg.width))
        self.kernel_bias = nn.Parameter(torch.zeros(cfg.width)) if spec.bias else None
        self.window = spec.window

    def forward(self, x: Tensor, step: Step) -> Tensor:
        b, c, x = tap(self.b(x), "b: B T D"), tap(self.c(x), "c: B T D"), tap(self.x(x), "x: B T D")
        gated = tap(ops.times(b, x), "gated: B T D")
        z = tap(ops.convolve(gated, step.store(self, gated), self.kernel, self.kernel_bias), "z: B T D")
        return self.o(tap(ops.times(c, z), "y: B T D"))  # type: ignore[no-any-return]


def convolved(
    x: Tensor, last: KVCache, place: int, kernel: nn.Parameter, bias: nn.Parameter | None, act: str, name: str, axes: str
) -> Tensor:
    """Sum each channel's last J rows, each times its own number, and take the activation.

    place: of x among the stored rows.  name, axes: of x, for the labels of both.
    """
    x = tap(ops.convolve(x, last, kernel, bias, place), f"{name}_sum: B T {axes}")
    return tap(ops.gate(x, None, act), f"{name}_act: B T {axes}")
