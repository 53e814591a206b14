"""Experts: rows sorted by expert meet each expert's matrix once, and come back to their tokens times their share.

No shape depends on the data: N = tokens × experts chosen, whoever is chosen.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.ops.blocks import Blocks
from pellucid.ops.linear import times
from pellucid.ops.precision import wide
from pellucid.tap import Index, Terms, note


def grouped(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [N in], sorted by expert, times weight [E out in]; rows before ends[0] are expert 0's. bias [E out]. FLOPs: 2·N·in·out."""
    fused = bias is None and fits_grouped_mm(rows, weight)
    y = F.grouped_mm(rows, weight.transpose(1, 2), offs=ends) if fused else grouped_reference(rows, weight, ends, bias)

    def terms(i: Index) -> Terms:
        e = int(torch.searchsorted(ends, torch.tensor(i[0]), right=True))
        extra = [] if bias is None else [bias[e, i[1]]]
        return Terms(x=[rows[i[0]], *[1.0] * len(extra)], weight=[weight[e, i[1]], *extra])

    return note(y, "experts", (rows,), (weight, bias), terms, 2 * y.numel() * weight.shape[2])


def grouped_reference(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """One expert after another; any dtype. On meta, one takes all rows: the same shape, and the same is kept for a backward."""
    if rows.device.type == "meta":
        return F.linear(rows, weight[0], None if bias is None else bias[0])
    cuts = [0, *ends.tolist()]
    met = [(e, rows[a:b]) for e, (a, b) in enumerate(pairwise(cuts)) if a < b] or [(0, rows)]  # the others' weights are not read
    return torch.cat([times(part, weight[e], None if bias is None else bias[e]) for e, part in met])


def fits_grouped_mm(rows: Tensor, weight: Tensor) -> bool:
    """torch 2.13 on a CPU takes no float64, and only rows of a multiple of 16 bytes; no gradient there, and no graph of float32."""
    narrow = torch.bfloat16
    return (
        rows.device.type != "meta"
        and rows.dtype in ((narrow,) if torch.compiler.is_compiling() else (narrow, wide(narrow)))
        and hasattr(F, "grouped_mm")
        and not torch.is_grad_enabled()
        and not isinstance(weight, Blocks)
        and all(n * rows.element_size() % 16 == 0 for n in weight.shape[1:])
    )


def weighted(rows: Tensor, share: Tensor, order: Tensor) -> Tensor:
    """Sorted rows [N D], each times its share [B T A], before its expert reads it."""
    factor = share.flatten()[order, None].to(rows.dtype)
    return note(rows * factor, "weighted", (rows, share), (), lambda i: Terms(x=rows[i], share=factor[i[0]]))


def combine(y: Tensor, share: Tensor, order: Tensor, like: Tensor) -> Tensor:
    """Put sorted rows y [N D] back to their tokens, each times its share [B T A]: [B T D], as like."""
    chosen = share.shape[-1]
    weighted = y * share.flatten()[order, None].to(y.dtype)
    out = torch.zeros_like(like.flatten(0, 1)).index_add(0, order // chosen, weighted).view_as(like)

    def terms(i: Index) -> Terms:
        at = (order // chosen == i[0] * like.shape[1] + i[1]).nonzero().flatten()
        return Terms(expert=y[at, i[2]], share=share.flatten()[order[at]])

    return note(out, "combine", (y, share), (), terms)
