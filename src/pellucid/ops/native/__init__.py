"""C++ kernels for one to sixteen rows on a CPU, and plans of them. Where they are not built, everything runs through torch."""

from pellucid.ops.native.attention import (
    attend,
    attend_latent,
    fits_attend,
    fits_latent,
    fits_listen,
    fits_store,
    listen,
    store,
    whereabouts,
)
from pellucid.ops.native.drawing import cooled, fits_row, level, levels, masses, within
from pellucid.ops.native.library import any_rows, available, constant, instructions, most, off
from pellucid.ops.native.plan import Plan, Recording, Unplannable, record
from pellucid.ops.native.quantised import (
    experts_blocks,
    fits_experts_blocks,
    fits_linear_blocks,
    fits_look_blocks,
    linear_blocks,
    look_blocks,
)
from pellucid.ops.native.routing import (
    best,
    combine,
    correct,
    experts,
    fits_experts,
    fits_scores,
    fits_shares,
    fits_sort,
    shares,
    softmax,
    sort,
    weigh,
)
from pellucid.ops.native.twins import (
    ROWS,
    add,
    angles,
    argmax,
    bend,
    capped,
    fits_add,
    fits_angles,
    fits_argmax,
    fits_each,
    fits_gate,
    fits_gated,
    fits_linear,
    fits_look,
    fits_norm,
    fits_rotate,
    fits_tempered,
    gate,
    gated,
    linear,
    linear_wide,
    look,
    norm,
    numbers,
    rotate,
    scaled,
    sigmoid,
    stream,
    tempered,
    waves,
)

__all__ = [
    "ROWS", "Plan", "Recording", "Unplannable", "add", "angles", "any_rows", "argmax", "attend", "attend_latent", "available",
    "bend", "best", "capped", "combine", "constant", "cooled", "correct", "experts", "experts_blocks", "fits_add", "fits_angles",
    "fits_argmax", "fits_attend", "fits_each", "fits_experts", "fits_experts_blocks", "fits_gate", "fits_gated", "fits_latent",
    "fits_linear", "fits_linear_blocks", "fits_listen", "fits_look", "fits_look_blocks", "fits_norm", "fits_rotate", "fits_row",
    "fits_scores", "fits_shares", "fits_sort", "fits_store", "fits_tempered", "gate", "gated", "instructions", "level", "levels",
    "linear", "linear_blocks", "linear_wide", "listen", "look", "look_blocks", "masses", "most", "norm", "numbers", "off", "record",
    "rotate", "scaled", "shares", "sigmoid", "softmax", "sort", "store", "stream", "tempered", "waves", "weigh", "whereabouts",
    "within",
]  # fmt: skip
