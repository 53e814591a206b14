"""The fast twins of experts on a CPU, for a few tokens: what their router says, who is chosen, and the products of the chosen.

Scores and shares are float32, as the reference takes them for both dtypes of the kernels. N rows are tokens times experts chosen.
"""

import torch
from torch import Tensor

from pellucid.ops.native.library import BEST, COMBINE, CORRECT, EXPERTS, HALF, SHARES, SOFTMAX, SORT, WEIGH, call, fresh, most
from pellucid.ops.native.twins import BF16_IS_FAST, ROUTED, address, count, few, fits, numbers
from pellucid.ops.precision import wide


def fits_scores(*x: Tensor) -> bool:
    """Whether these are float32 scores of a few tokens."""
    return few(x[0]) and x[0].dtype is wide(torch.bfloat16) and fits(*x)


def softmax(x: Tensor) -> Tensor:
    """Softmax of rows [... E]."""
    y = fresh(tuple(x.shape), x.dtype)
    call(SOFTMAX, 0, (x,), (y,), x.data_ptr(), y.data_ptr(), count(x), x.shape[-1])
    return y


def correct(x: Tensor, by: Tensor) -> Tensor:
    """Rows x [... E] plus by [E]."""
    y = fresh(tuple(x.shape), x.dtype)
    call(CORRECT, 0, (x, by), (y,), x.data_ptr(), by.data_ptr(), y.data_ptr(), count(x), x.shape[-1])
    return y


def best(x: Tensor, chosen: int, groups: int, groups_chosen: int, few: int) -> Tensor:
    """Numbers of the largest of each row [... E], in falling order, of the best groups alone: LongTensor [... A]."""
    y = fresh((*x.shape[:-1], chosen), torch.int64)
    call(BEST, 0, (x,), (y,), x.data_ptr(), y.data_ptr(), count(x), x.shape[-1], chosen, groups, groups_chosen, few)
    return y


def shares(x: Tensor, chosen: Tensor, normalised: bool, scale: float) -> Tensor:
    """Scores [B T E] of the chosen [B T A], over their sum where normalised, times scale: [B T A]."""
    y = fresh(tuple(chosen.shape), x.dtype)
    words = x.data_ptr(), chosen.data_ptr(), y.data_ptr(), count(x), x.shape[-1], chosen.shape[-1], int(normalised), scale
    call(SHARES, 0, (x, chosen), (y,), *words)
    return y


def fits_sort(chosen: Tensor, x: Tensor) -> bool:
    return few(x) and numbers(chosen) and fits(x)


def sort(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choices [B T A] by expert -> (which choice each of N rows is, whose row it reads, where each expert's rows end [E])."""
    n = chosen.numel()
    order, token, ends = fresh((n,), torch.int64), fresh((n,), torch.int64), fresh((experts,), torch.int32)
    words = chosen.data_ptr(), order.data_ptr(), token.data_ptr(), ends.data_ptr(), count(chosen), chosen.shape[-1], experts
    call(SORT, 0, (chosen,), (order, token, ends), *words)
    return order, token, ends


def fits_experts(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> bool:
    some = 0 < rows.shape[0] <= most(ROUTED) or (rows.dtype is torch.bfloat16 and not BF16_IS_FAST and rows.numel() > 0)
    return some and ends.dtype is torch.int32 and ends.is_contiguous() and fits(rows, weight, bias)


def experts(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """rows [N in], sorted by expert, times weight [E out in], plus bias [E out]: [N out]."""
    E, n, k = weight.shape
    y = fresh((rows.shape[0], n), rows.dtype)
    reads = tuple(t for t in (rows, weight, ends, bias) if t is not None)
    words = weight.data_ptr(), rows.data_ptr(), y.data_ptr(), address(bias), ends.data_ptr(), rows.shape[0], E, n, k
    call(EXPERTS, HALF[rows.dtype], reads, (y,), *words)
    return y


def fits_shares(rows: Tensor, share: Tensor, order: Tensor) -> bool:
    return few(share) and share.dtype is wide(torch.bfloat16) and numbers(order) and fits(share) and fits(rows)


def weigh(rows: Tensor, share: Tensor, order: Tensor) -> Tensor:
    """Sorted rows [N D], each times its share [B T A]."""
    y = fresh(tuple(rows.shape), rows.dtype)
    words = rows.data_ptr(), share.data_ptr(), order.data_ptr(), y.data_ptr(), *rows.shape
    call(WEIGH, HALF[rows.dtype], (rows, share, order), (y,), *words)
    return y


def combine(rows: Tensor, share: Tensor | None, order: Tensor, like: Tensor) -> Tensor:
    """Sorted rows [N D] back to their tokens, times their shares [B T A] where there are any, and summed: as like [B T D]."""
    y, tokens = fresh(tuple(like.shape), rows.dtype), count(like)
    reads = tuple(t for t in (rows, share, order) if t is not None)
    words = rows.data_ptr(), address(share), order.data_ptr(), y.data_ptr(), tokens, rows.shape[0] // tokens, rows.shape[1]
    call(COMBINE, HALF[rows.dtype], reads, (y,), *words)
    return y
