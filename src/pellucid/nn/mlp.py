"""The dense feed-forward part: every token alone goes up to F neurons and down again."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.nn.linear import Linear
from pellucid.watching.tap import tap


class Mlp(nn.Module):
    """x [B T D] -> down(act(up(x))) [B T D]. arXiv 1706.03762."""

    axes = {"up": "F D", "down": "D F"}

    def __init__(self, cfg: c.Config, spec: c.Mlp) -> None:
        super().__init__()
        self.act, self.up, self.down = spec.act, Linear(cfg.width, spec.width, spec.bias), Linear(spec.width, cfg.width, spec.bias)

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        up = tap(self.up(x), "up: B T F")
        return self.down(tap(ops.gate(up, None, self.act), "neurons: B T F"))  # type: ignore[no-any-return]


class GatedMlp(Mlp):
    """down(act(gate(x)) · up(x)). arXiv 2002.05202."""

    axes = {"gate": "F D", **Mlp.axes}

    def __init__(self, cfg: c.Config, spec: c.Mlp) -> None:
        super().__init__(cfg, spec)
        self.gate = Linear(cfg.width, spec.width, spec.bias)

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        gate, up = tap(self.gate(x), "gate: B T F"), tap(self.up(x), "up: B T F")
        return self.down(tap(ops.gate(gate, up, self.act), "neurons: B T F"))  # type: ignore[no-any-return]
