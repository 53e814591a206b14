"""Layers that attention is compared with: a GRU, which reads one row after another, and a causal convolution, which reads a few."""

import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.nn.linear import Linear
from pellucid.ops.recurrent import blended, shifted, times
from pellucid.watching.tap import tap


class Gru(nn.Module):
    """x [B T D] -> states [B T D], each made of its row and the state before it. arXiv 1406.1078, as torch.nn.GRU computes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.x_reset, self.x_keep, self.x_new = (Linear(width, width) for _ in range(3))
        self.h_reset, self.h_keep, self.h_new = (Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x_reset, x_keep, x_new = (
            tap(self.x_reset(x), "x_reset: B T D"),
            tap(self.x_keep(x), "x_keep: B T D"),
            tap(self.x_new(x), "x_new: B T D"),
        )
        state, states = tap(x.new_zeros(x.shape[0], x.shape[2]), "start: B D"), []
        for t in range(x.shape[1]):
            state = self.step(x_reset[:, t], x_keep[:, t], x_new[:, t], state)
            states.append(state)
        return torch.stack(states, 1)

    def step(self, x_reset: Tensor, x_keep: Tensor, x_new: Tensor, state: Tensor) -> Tensor:
        """Return the state [B D] after one more row, whose three products are given."""
        h_reset, h_keep = tap(self.h_reset(state), "h_reset: B D"), tap(self.h_keep(state), "h_keep: B D")
        reset = tap(ops.sigmoid(tap(ops.add(x_reset, h_reset), "reset_sum: B D")), "reset: B D")
        keep = tap(ops.sigmoid(tap(ops.add(x_keep, h_keep), "keep_sum: B D")), "keep: B D")
        old = tap(times(reset, tap(self.h_new(state), "h_new: B D")), "reset_state: B D")
        new = tap(ops.tanh(tap(ops.add(x_new, old), "new_sum: B D")), "new: B D")
        return tap(blended(new, state, keep), "state: B D")


class CausalConvolution(nn.Module):
    """x [B T D] -> y [B T D]: row t sums products of `kernel` rows, `dilation` apart, the last of them t itself. arXiv 1609.03499."""

    def __init__(self, width: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.width, self.dilation = width, dilation
        self.taken = nn.ModuleList(Linear(width, width, bias=not back) for back in range(kernel))

    def forward(self, x: Tensor) -> Tensor:
        y = tap(self.taken[0](x), "sum: B T D")
        for back, linear in enumerate(self.taken):
            if back:
                row = tap(shifted(x, back * self.dilation), "shifted: B T D")
                y = tap(ops.add(y, tap(linear(row), "product: B T D")), "sum: B T D")
        return y
