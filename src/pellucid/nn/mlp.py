"""The dense feed-forward part: every token alone goes up to F neurons and down again."""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.distributed import ALONE
from pellucid.nn.linear import Linear
from pellucid.watching.tap import tap


class Mlp(nn.Module):
    """x [B T D] -> down(act(up(x))) [B T D]. arXiv 1706.03762."""

    axes = {"up": "F D", "down": "D F"}
    ranks = ALONE  # that share its neurons

    def __init__(self, cfg: c.Config, spec: c.Mlp) -> None:
        super().__init__()
        self.act, self.up = spec.act, Linear(cfg.width, spec.width, spec.bias)
        self.down = Linear(spec.width, cfg.width, spec.bias or spec.down_bias)

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        up = tap(self.up(self.ranks.shared(x)), "up: B T F")
        return self.down(tap(self.activate(up), "neurons: B T F"))  # type: ignore[no-any-return]

    def activate(self, up: Tensor) -> Tensor:
        """Return the neurons [B T F] of their inputs."""
        return ops.gate(up, None, self.act)


class XieluMlp(Mlp):
    """down(xielu(up(x))), whose bend below 0 and above it are learned (arXiv 2411.13010)."""

    axes = {**Mlp.axes, "alpha_p": "1", "alpha_n": "1"}
    beta: Tensor
    eps: Tensor

    def __init__(self, cfg: c.Config, spec: c.Mlp) -> None:
        super().__init__(cfg, spec)
        self.alpha_p, self.alpha_n = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.register_buffer("beta", torch.tensor(0.5))
        self.register_buffer("eps", torch.tensor(-1e-6))

    def activate(self, up: Tensor) -> Tensor:
        return ops.xielu(up, self.alpha_p, self.alpha_n, self.beta, self.eps)


class GatedMlp(Mlp):
    """down(act(gate(x)) · up(x)). arXiv 2002.05202."""

    axes = {"gate": "F D", **Mlp.axes}

    def __init__(self, cfg: c.Config, spec: c.Mlp) -> None:
        super().__init__(cfg, spec)
        self.gate = Linear(cfg.width, spec.width, spec.bias)
        self.gate_factor = spec.gate_factor if spec.gate_factor != 1.0 else None

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        x = self.ranks.shared(x)
        gate, up = tap(self.gate(x), "gate: B T F"), tap(self.up(x), "up: B T F")
        if self.gate_factor is not None:
            gate = tap(ops.scaled(gate, self.gate_factor), "gate_scaled: B T F")
        return self.down(tap(ops.gate(gate, up, self.act), "neurons: B T F"))  # type: ignore[no-any-return]
