"""Mamba-2, in attention's place (state space duality, arXiv 2405.21060): each head keeps one matrix instead of keys and values."""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.states import MatrixState
from pellucid.batch.step import Step
from pellucid.nn.linear import Linear
from pellucid.nn.norm import GATED_NORMS
from pellucid.nn.short_conv import convolved
from pellucid.watching.tap import tap


class Mamba2(nn.Module):
    """u [B T D] -> [B T D]: rows x that a matrix of each head adds up under keys b, as it fades, and that c reads from it."""

    axes = {"z": "(H W) D", "x": "(H W) D", "b": "(G K) D", "c": "(G K) D", "dt_in": "H D", "o": "D (H W)",
            "x_kernel": "J H W", "b_kernel": "J G K", "c_kernel": "J G K", "x_kernel_bias": "H W", "b_kernel_bias": "G K",
            "c_kernel_bias": "G K", "log_rate": "H", "rate_bias": "H", "skip": "H"}  # fmt: skip
    reads_source: tuple[str, ...] = ()
    x_kernel_bias: nn.Parameter | None
    b_kernel_bias: nn.Parameter | None
    c_kernel_bias: nn.Parameter | None

    def __init__(self, cfg: c.Config, spec: c.Mamba2) -> None:
        super().__init__()
        heads, shared = (spec.state_heads, spec.row_width), (spec.groups, spec.state_width)
        self.z, self.x, self.b, self.c = (Linear(cfg.width, n * width, spec.bias) for n, width in (heads, heads, shared, shared))
        self.dt_in = Linear(cfg.width, spec.state_heads, spec.bias)
        self.x_kernel, self.b_kernel, self.c_kernel = (nn.Parameter(torch.ones(spec.rows, *sizes)) for sizes in (heads, shared, shared))
        for name, sizes in {"x": heads, "b": shared, "c": shared}.items():
            self.register_parameter(f"{name}_kernel_bias", nn.Parameter(torch.zeros(sizes)) if spec.kernel_bias else None)
        self.log_rate, self.rate_bias, self.skip = (nn.Parameter(make(spec.state_heads)) for make in (torch.zeros, torch.ones, torch.ones))
        self.norm = GATED_NORMS[spec.gated_norm](spec.state_heads * spec.row_width, cfg.eps, spec.groups)
        self.o = Linear(spec.state_heads * spec.row_width, cfg.width, spec.bias)
        self.state = MatrixState(spec.rows, spec.state_shape)
        self.window, self.spec = spec.rows, spec
        self.factors = dict(zip(("z", "x", "b", "c", "dt_in"), spec.factors, strict=False))

    def forward(self, u: Tensor, step: Step) -> Tensor:
        spec = self.spec
        x = self.product(u, "x", "B T H W", spec.row_width)
        b, c = self.product(u, "b", "B T G K", spec.state_width), self.product(u, "c", "B T G K", spec.state_width)
        last = step.store(self, x, b, c)
        x = convolved(x, last, 0, self.x_kernel, self.x_kernel_bias, spec.act, "x", "H W")
        b = convolved(b, last, 1, self.b_kernel, self.b_kernel_bias, spec.act, "b", "G K")
        c = convolved(c, last, 2, self.c_kernel, self.c_kernel_bias, spec.act, "c", "G K")
        dt = tap(ops.softplus(self.product(u, "dt_in", "B T H"), self.rate_bias, spec.least, spec.most), "dt: B T H")
        decay = tap(ops.decay(dt, self.log_rate), "decay: B T H")
        y = tap(ops.ssd(x, b, c, dt, decay, self.skip, step.states(self.state, decay)), "y: B T H W")
        z = self.product(u, "z", "B T H W", spec.row_width)
        return self.o(tap(self.norm(y, z), "y_gated: B T H W").flatten(-2))  # type: ignore[no-any-return]

    def product(self, u: Tensor, name: str, axes: str, width: int | None = None) -> Tensor:
        """Return a product of the rows u by its name, in heads of this width, times its factor if it has one."""
        y = getattr(self, name)(u)
        y = tap(y if width is None else y.unflatten(-1, (-1, width)), f"{name}: {axes}")
        return tap(ops.scaled(y, self.factors[name]), f"{name}_scaled: {axes}") if name in self.factors else y
