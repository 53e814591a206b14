"""The mathematics: each op has a tapped reference, the terms of its cells, its FLOPs, and fast twins behind a test of fit."""

from pellucid.ops.attend import attend
from pellucid.ops.choose import choose
from pellucid.ops.convolve import convolve
from pellucid.ops.delta import delta_rule
from pellucid.ops.distance import distances
from pellucid.ops.experts import best, combine, corrected, grouped, mixed, scaled_shares, shares, sort, weighted
from pellucid.ops.gate import capped, clipped, gate, gated, sigmoid, softmax, tanh, xielu
from pellucid.ops.held import format_for, rows_held
from pellucid.ops.latent import attend_latent
from pellucid.ops.linear import (
    Added,
    adapted,
    add,
    dense_weight,
    dropped,
    embedding,
    gain,
    gather,
    identity,
    linear,
    linear_wide,
    merged,
    multiplied,
    picked,
    scale_by_position,
    scaled,
)
from pellucid.ops.loss import tapped_loss
from pellucid.ops.mixture import mixture
from pellucid.ops.norm import layer, layer_heads, layer_offset, rms, rms_groups, rms_heads, rms_offset
from pellucid.ops.precision import rounded, wide
from pellucid.ops.recurrent import times
from pellucid.ops.rotate import angles, rotate
from pellucid.ops.selective import selective_scan
from pellucid.ops.sinusoid import sinusoids
from pellucid.ops.ssd import decay, softplus, ssd

__all__ = [
    "Added",
    "adapted",
    "add",
    "angles",
    "attend",
    "attend_latent",
    "best",
    "capped",
    "choose",
    "clipped",
    "combine",
    "convolve",
    "corrected",
    "decay",
    "delta_rule",
    "dense_weight",
    "distances",
    "dropped",
    "embedding",
    "format_for",
    "gain",
    "gate",
    "gated",
    "gather",
    "grouped",
    "identity",
    "layer",
    "layer_heads",
    "layer_offset",
    "linear",
    "linear_wide",
    "merged",
    "mixed",
    "mixture",
    "multiplied",
    "picked",
    "rms",
    "rms_groups",
    "rms_heads",
    "rms_offset",
    "rotate",
    "rounded",
    "rows_held",
    "scale_by_position",
    "scaled",
    "scaled_shares",
    "selective_scan",
    "shares",
    "sigmoid",
    "sinusoids",
    "softmax",
    "softplus",
    "sort",
    "ssd",
    "tanh",
    "tapped_loss",
    "times",
    "weighted",
    "wide",
    "xielu",
]  # fmt: skip
