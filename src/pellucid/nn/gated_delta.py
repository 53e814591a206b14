"""Gated DeltaNet, in attention's place (arXiv 2412.06464, as Qwen3-Next has it): each head keeps one matrix instead of keys and values."""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.states import MatrixState
from pellucid.batch.step import Step
from pellucid.nn.linear import Linear
from pellucid.nn.norm import GatedRmsNorm
from pellucid.nn.short_conv import convolved
from pellucid.watching.tap import tap


class GatedDelta(nn.Module):
    """x [B T D] -> [B T D]: values that queries read from a matrix of each head, which every token fades and rewrites under its key."""

    axes = {"q": "(G K) D", "k": "(G K) D", "v": "(H W) D", "z": "(H W) D", "a": "H D", "b": "H D", "o": "D (H W)",
            "q_kernel": "J G K", "k_kernel": "J G K", "v_kernel": "J H W", "log_rate": "H", "rate_bias": "H"}  # fmt: skip
    reads_source: tuple[str, ...] = ()

    def __init__(self, cfg: c.Config, spec: c.GatedDelta) -> None:
        super().__init__()
        keys, values = (spec.key_heads, spec.key), (spec.value_heads, spec.value)
        self.q, self.k, self.v, self.z = (Linear(cfg.width, n * width, False) for n, width in (keys, keys, values, values))
        self.a, self.b = (Linear(cfg.width, spec.value_heads, False) for _ in range(2))
        self.q_kernel, self.k_kernel, self.v_kernel = (nn.Parameter(torch.ones(spec.rows, *sizes)) for sizes in (keys, keys, values))
        self.log_rate, self.rate_bias = nn.Parameter(torch.zeros(spec.value_heads)), nn.Parameter(torch.ones(spec.value_heads))
        self.norm = GatedRmsNorm(spec.value, cfg.eps if spec.out_eps is None else spec.out_eps)
        self.o = Linear(spec.value_heads * spec.value, cfg.width, False)
        self.state = MatrixState(spec.rows, spec.state_shape)
        self.most = spec.beta_most if spec.beta_most != 1.0 else None
        self.window, self.key, self.value, self.act = spec.rows, spec.key, spec.value, spec.act
        self.scale, self.eps = spec.key**-0.5, 1e-6 / spec.key  # keys and queries have length 1; their eps is of a sum, not of a mean

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q, k = tap(self.heads(self.q(x), self.key), "q: B T G K"), tap(self.heads(self.k(x), self.key), "k: B T G K")
        v = tap(self.heads(self.v(x), self.value), "v: B T H W")
        last, act = step.store(self, q, k, v), self.act
        q, k = convolved(q, last, 0, self.q_kernel, None, act, "q", "G K"), convolved(k, last, 1, self.k_kernel, None, act, "k", "G K")
        q, k = tap(ops.rms(q, None, self.eps), "q_even: B T G K"), tap(ops.rms(k, None, self.eps), "k_even: B T G K")
        v = convolved(v, last, 2, self.v_kernel, None, act, "v", "H W")
        dt = tap(ops.softplus(tap(self.a(x), "a: B T H"), self.rate_bias), "dt: B T H")
        decay = tap(ops.decay(dt, self.log_rate), "decay: B T H")
        beta = tap(ops.sigmoid(tap(self.b(x), "b: B T H")), "beta: B T H")
        if self.most is not None:
            beta = tap(ops.scaled(beta, self.most), "beta_scaled: B T H")
        y = tap(ops.delta_rule(q, k, v, decay, beta, step.states(self.state, decay), self.scale), "y: B T H W")
        z = tap(self.heads(self.z(x), self.value), "z: B T H W")
        return self.o(tap(self.norm(y, z), "y_gated: B T H W").flatten(-2))  # type: ignore[no-any-return]

    @staticmethod
    def heads(x: Tensor, width: int) -> Tensor:
        """Cut rows into heads of this width."""
        return x.unflatten(-1, (-1, width))  # type: ignore[no-any-return]
