"""Mamba-1's selective scan (arXiv 2312.00752): one matrix of all channels, each number of which fades by itself.

    S <- decay ∘ S + B (dt ∘ x)ᵀ        y = Sᵀ C + D ∘ x        decay[k, w] = exp(−exp(A[k, w]) · dt[w])

Channel w keeps its own column of K numbers. dt, the size of its step in time, is made of the token, so that one number decides how
much of the column is left and how much of x is written into it. Mamba-2's scan is this one with one decay and one dt for all of a head.
"""

from dataclasses import replace

from torch import Tensor

from pellucid.batch.states import States
from pellucid.ops.scan import Recurrence, ScanRows, scan
from pellucid.ops.ssd import SSD, SSD_STATE

SELECTIVE_SCAN = replace(SSD, name="selective scan")
SELECTIVE_STATE = replace(SSD_STATE, name="selective state", formula=lambda m: f"selective({', '.join(m.inputs)})")
HOW = Recurrence(SELECTIVE_SCAN, SELECTIVE_STATE, corrects=False, by_channel=True)


def selective_scan(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, decay: Tensor, skip: Tensor, states: States) -> Tensor:
    """Fade each text's state by its rows one after another, write dt · x under b, and read c from it. Returns y [B T H W], H 1.

    x [B T H W].  b, c [B T K].  dt [B T W].  decay [B T K W].  skip [W]: D, what of x is added.
    FLOPs: 4·K·W a token, in two products of the state.
    """
    rows = ScanRows(c.unsqueeze(2), b.unsqueeze(2), x, decay.unsqueeze(2), dt.unsqueeze(2))
    return scan(rows, states, HOW, skip)
