"""The kernels of a mixture of experts as functions of tensors, each with the condition under which it serves."""

from types import ModuleType

import torch
from torch import Tensor

from pellucid.ops.gpu.launch import available, fits, how, power
from pellucid.ops.gpu.merging import flush

MOST = 512  # choices of a step: tokens times the experts of each


def kernels() -> ModuleType:
    """Return the module of kernels; importing it needs Triton. What waits is launched first."""
    from pellucid.ops.gpu import expert_kernels

    flush()
    return expert_kernels


def fits_choice(x: Tensor, few: int) -> bool:
    """True if the kernels take affinities or ranks x [B T E], `few` experts chosen."""
    return fits(x) and x.numel() // x.shape[-1] * few <= MOST and x.shape[-1] <= MOST


def best(ranks: Tensor, few: int) -> Tensor:
    """Choose the experts [B T A] of the `few` highest ranks [B T E], of ties the first."""
    y = ranks.new_empty(*ranks.shape[:-1], few, dtype=torch.long)
    experts = ranks.shape[-1]
    kernels().best[(ranks.numel() // experts,)](ranks, y, experts, few, power(experts), few, **how(ranks, 1))
    return y


def shares(affinity: Tensor, chosen: Tensor, normalised: bool, scale: float, least: float) -> Tensor:
    """Return the weight of each chosen expert [B T A]; normalised, those of a token sum to the scale."""
    experts, few = affinity.shape[-1], chosen.shape[-1]
    y = affinity.new_empty(chosen.shape)
    kernels().shares[(chosen.numel() // few,)](affinity, chosen, y, experts, few, scale, least, normalised, power(few), **how(affinity, 1))
    return y


def fits_sort(chosen: Tensor) -> bool:
    """True if `sort` takes these choices."""
    return chosen.is_cuda and chosen.dtype is torch.long and chosen.is_contiguous() and 0 < chosen.numel() <= MOST and available()


def sort(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort choices [B T A] by expert. Returns which choice each row is, the token it reads, each expert's end [E]."""
    count, some = chosen.numel(), 16
    order, token = (chosen.new_empty(count) for _ in range(2))
    ends = chosen.new_empty(experts, dtype=torch.int32)
    kernels().sort[(-(-max(count, experts) // some),)](
        chosen, order, token, ends, count, chosen.shape[-1], experts, power(count), some, **how(chosen, 1)
    )
    return order, token, ends


def fits_experts(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> bool:
    """True if `experts` takes rows [N in] and weight [E out in]: so few that an expert is hardly read twice. Others are torch's."""
    return fits(rows, weight, bias) and ends.is_cuda and 4 * len(rows) <= len(weight)


def experts(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows [N in], sorted by expert, by their experts' weight [E out in]; ends [E] says where each expert's rows end."""
    count, outer, inner = weight.shape
    y = rows.new_empty(len(rows), outer)
    each, step = 4, min(1024, power(inner))
    kernels().experts[(len(rows), -(-outer // each))](
        rows, weight, bias, ends, y, inner, outer, count, bias is not None, power(count), each, step, **how(rows)
    )
    return y


def fits_combine(y: Tensor, share: Tensor, order: Tensor) -> bool:
    """True if `combine` takes sorted rows y [N D] and shares [B T A]."""
    return fits(y) and fits(share) and len(order) == share.numel() <= MOST and order.is_contiguous()


def combine(y: Tensor, share: Tensor, order: Tensor, like: Tensor, weighted: bool) -> Tensor:
    """Sum the sorted rows y [N D] of each token, times their shares [B T A] unless `weighted`. Returns [B T D], as `like`."""
    out, width, few = torch.empty_like(like), y.shape[-1], share.shape[-1]
    kernels().combine[(share.numel() // few, -(-width // 512))](
        y, share, order, out, width, len(order), few, weighted, power(len(order)), min(512, power(width)), **how(y, 2)
    )
    return out
