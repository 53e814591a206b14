"""The norms of all families, by name."""

import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.watching.tap import tap


class RmsNorm(nn.Module):
    """x over its root mean square, times a weight (arXiv 1910.07467)."""

    axes = {"weight": "D"}
    centred = False

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(width))

    def gain(self) -> Tensor:
        """Return the factor of each channel [D], besides the row's own scale."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms(x, self.weight, self.eps)


class BareRmsNorm(nn.Module):
    """x over its root mean square, and nothing learned (nanochat)."""

    axes: dict[str, str] = {}
    centred = False

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms(x, None, self.eps)


class GatedRmsNorm(RmsNorm):
    """x [... W] over its root mean square, times a weight, times the SiLU of a gate of its shape (Gated DeltaNet, arXiv 2412.06464)."""

    axes = {"weight": "W"}

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return ops.gate(gate, tap(ops.rms(x, self.weight, self.eps), "normed: B T H W"), "silu")


class GroupRmsNorm(RmsNorm):
    """x [... H W] times the SiLU of a gate, over the root mean square of each group of heads, times a weight (arXiv 2405.21060)."""

    axes = {"weight": "(H W)"}

    def __init__(self, width: int, eps: float, groups: int) -> None:
        super().__init__(width, eps)
        self.groups = groups

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return ops.rms_groups(tap(ops.gate(gate, x, "silu"), "gated: B T H W"), self.weight, self.eps, self.groups)


class ThenGatedRmsNorm(GroupRmsNorm):
    """x [... H W] over the root mean square of each group of heads, times a weight, times the SiLU of a gate (Falcon-H1)."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return ops.gate(gate, tap(ops.rms_groups(x, self.weight, self.eps, self.groups), "normed: B T H W"), "silu")


class GateAlone(nn.Module):
    """x times the SiLU of a gate of its shape, where no norm stands beside the gate."""

    def __init__(self, width: int, eps: float, groups: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return ops.gate(gate, x, "silu")


GATED_NORMS: dict[str, type[GroupRmsNorm] | type[GateAlone]] = {
    "of gated": GroupRmsNorm, "then gated": ThenGatedRmsNorm, "none": GateAlone,
}  # fmt: skip


class HeadsRmsNorm(RmsNorm):
    """x [... H K] over the root mean square of all heads of its row together, times a weight (OLMo 2, arXiv 2501.00656)."""

    axes = {"weight": "(H K)"}

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_heads(x, self.weight, self.eps)


class OffsetRmsNorm(RmsNorm):
    """x over its root mean square, times 1 + weight, all of it wide (Gemma, arXiv 2403.08295)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        nn.init.zeros_(self.weight)

    def gain(self) -> Tensor:
        return 1.0 + self.weight

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_offset(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """x less its mean, over its deviation, times a weight, plus a bias (arXiv 1607.06450)."""

    axes = {"weight": "D", "bias": "D"}
    centred = True

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight, self.bias = eps, nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def gain(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer(x, self.weight, self.bias, self.eps)


class OffsetLayerNorm(LayerNorm):
    """LayerNorm times 1 + weight, so that weights decay to 1 (Nemotron-4, arXiv 2402.16819)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        nn.init.zeros_(self.weight)

    def gain(self) -> Tensor:
        return 1.0 + self.weight

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_offset(x, self.weight, self.bias, self.eps)


class PlainLayerNorm(nn.Module):
    """LayerNorm without the bias (PaLM, arXiv 2204.02311)."""

    axes = {"weight": "D"}
    centred = True

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(width))

    def gain(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer(x, self.weight, None, self.eps)


class BareLayerNorm(nn.Module):
    """x less its mean, over its deviation, and nothing learned (OLMo, arXiv 2402.00838)."""

    axes: dict[str, str] = {}
    centred = True

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer(x, None, None, self.eps)


class HeadsLayerNorm(PlainLayerNorm):
    """LayerNorm of each head of x [... H K] by itself, without a bias, times the head's own weights (StableLM 2 12B, Command R+)."""

    axes = {"weight": "(H K)"}

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_heads(x, self.weight, self.eps)


class NoNorm(nn.Module):
    """x as it is."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return ops.identity(x)


AnyNorm = RmsNorm | BareRmsNorm | LayerNorm | PlainLayerNorm | BareLayerNorm | NoNorm
NORMS: dict[str, type[AnyNorm]] = {
    "rms": RmsNorm, "rms offset": OffsetRmsNorm, "rms, no weight": BareRmsNorm, "layer": LayerNorm, "layer offset": OffsetLayerNorm,
    "layer, no bias": PlainLayerNorm, "layer, no weight": BareLayerNorm, "none": NoNorm,
}  # fmt: skip
