"""C++ kernels for one to sixteen rows on a CPU, and plans of them. Where they are not built, everything runs through torch."""

from pellucid.ops.native.library import available, instructions, off
from pellucid.ops.native.plan import Plan, Recording, Unplannable, record
from pellucid.ops.native.quantised import fits_linear_blocks, fits_look_blocks, linear_blocks, look_blocks
from pellucid.ops.native.twins import (
    add,
    angles,
    argmax,
    attend,
    fits_add,
    fits_angles,
    fits_argmax,
    fits_attend,
    fits_gate,
    fits_linear,
    fits_look,
    fits_norm,
    fits_rotate,
    fits_store,
    gate,
    linear,
    look,
    norm,
    rotate,
    store,
    stream,
)

__all__ = [
    "Plan", "Recording", "Unplannable", "add", "angles", "argmax", "attend", "available", "fits_add", "fits_angles", "fits_argmax",
    "fits_attend", "fits_gate", "fits_linear", "fits_linear_blocks", "fits_look", "fits_look_blocks", "fits_norm", "fits_rotate",
    "fits_store", "gate", "instructions", "linear", "linear_blocks", "look", "look_blocks", "norm", "off", "record", "rotate", "store",
    "stream",
]  # fmt: skip
