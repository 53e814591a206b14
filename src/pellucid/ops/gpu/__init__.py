"""Kernels for a decode step on a GPU, and steps recorded as graphs. Where there is no Triton, everything runs through torch."""

from pellucid.ops.gpu.expert_choice import best, combine, experts, fits_choice, fits_combine, fits_experts, fits_sort, shares, sort
from pellucid.ops.gpu.gpu_twins import (
    add,
    attend,
    fits_add,
    fits_attend,
    fits_gate,
    fits_linear,
    fits_norm,
    fits_rotate,
    fits_store,
    gate,
    linear,
    norm,
    rotate,
    store,
)
from pellucid.ops.gpu.graph import Graph, capturing, record, record_also
from pellucid.ops.gpu.launch import available

__all__ = [
    "Graph",
    "add",
    "attend",
    "available",
    "best",
    "capturing",
    "combine",
    "experts",
    "fits_add",
    "fits_attend",
    "fits_choice",
    "fits_combine",
    "fits_experts",
    "fits_gate",
    "fits_linear",
    "fits_norm",
    "fits_rotate",
    "fits_sort",
    "fits_store",
    "gate",
    "linear",
    "norm",
    "record",
    "record_also",
    "rotate",
    "shares",
    "sort",
    "store",
]
