"""The mathematics: each op a plain tapped reference, the terms of its cells, its FLOPs, and fast twins behind a fit test."""

from pellucid.ops.attend import attend
from pellucid.ops.experts import combine, grouped
from pellucid.ops.gate import each, gate
from pellucid.ops.latent import attend_latent
from pellucid.ops.linear import add, linear, linear_wide, look, pick, scaled
from pellucid.ops.norm import layer, rms
from pellucid.ops.precision import wide
from pellucid.ops.rotate import angles, rotate

__all__ = [
    "add", "angles", "attend", "attend_latent", "combine", "each", "gate", "grouped", "layer", "linear", "linear_wide", "look", "pick",
    "rms", "rotate", "scaled", "wide",
]  # fmt: skip
