"""Mamba-1, in attention's place (selective state spaces, arXiv 2312.00752): every channel keeps a few numbers, and no keys or values."""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.states import MatrixState
from pellucid.batch.step import Step
from pellucid.nn.linear import Linear
from pellucid.nn.norm import NORMS, AnyNorm
from pellucid.nn.short_conv import convolved
from pellucid.watching.tap import tap


def inner_norm(spec: c.Mamba1, width: int) -> AnyNorm | None:
    """Make a norm of rows of this width, None for a spec without norms."""
    return None if spec.norms == "none" else NORMS[spec.norms](width, spec.norm_eps)


class Mamba1(nn.Module):
    """u [B T D] -> [B T D]: one head's rows x, which its matrix adds up under keys b as each number of it fades, and which c reads."""

    axes = {"z": "(H W) D", "x": "(H W) D", "dt_low": "R (H W)", "b": "K (H W)", "c": "K (H W)", "dt_in": "W R", "o": "D (H W)",
            "x_kernel": "J H W", "x_kernel_bias": "H W", "log_rate": "K W", "rate_bias": "W", "skip": "W",
            "dt_norm": "R", "b_norm": "K", "c_norm": "K"}  # fmt: skip
    reads_source: tuple[str, ...] = ()

    def __init__(self, cfg: c.Config, spec: c.Mamba1) -> None:
        super().__init__()
        width, key = spec.row_width, spec.state_width
        self.z, self.x = (Linear(cfg.width, width, spec.bias) for _ in "zx")
        self.dt_low, self.b, self.c = (Linear(width, n, False) for n in (spec.rank, key, key))
        self.dt_in = Linear(spec.rank, width, False)
        self.x_kernel = nn.Parameter(torch.ones(spec.rows, 1, width))
        self.x_kernel_bias = nn.Parameter(torch.zeros(1, width)) if spec.kernel_bias else None
        self.log_rate = nn.Parameter(torch.arange(1.0, key + 1).log()[:, None].repeat(1, width))  # the paper's A, real: −1 … −K
        self.rate_bias, self.skip = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.dt_norm, self.b_norm, self.c_norm = (inner_norm(spec, n) for n in (spec.rank, key, key))
        self.o = Linear(width, cfg.width, spec.bias)
        self.state = MatrixState(spec.rows, spec.state_shape)
        self.window, self.act = spec.rows, spec.act

    def forward(self, u: Tensor, step: Step) -> Tensor:
        x = tap(self.x(u).unsqueeze(2), "x: B T H W")
        x = convolved(x, step.store(self, x), 0, self.x_kernel, self.x_kernel_bias, self.act, "x", "H W")
        rows = x.flatten(-2)
        dt, b, c = tap(self.dt_low(rows), "dt_low: B T R"), tap(self.b(rows), "b: B T K"), tap(self.c(rows), "c: B T K")
        if self.dt_norm is not None and self.b_norm is not None and self.c_norm is not None:
            dt, b, c = tap(self.dt_norm(dt), "dt_norm: B T R"), tap(self.b_norm(b), "b_norm: B T K"), tap(self.c_norm(c), "c_norm: B T K")
        dt = tap(ops.softplus(tap(self.dt_in(dt), "dt_in: B T W"), self.rate_bias), "dt: B T W")
        decay = tap(ops.decay(dt, self.log_rate), "decay: B T K W")
        y = tap(ops.selective_scan(x, b, c, dt, decay, self.skip, step.states(self.state, decay)), "y: B T H W")
        z = tap(self.z(u).unsqueeze(2), "z: B T H W")
        return self.o(tap(ops.gate(z, y, "silu"), "y_gated: B T H W").flatten(-2))  # type: ignore[no-any-return]
