"""The experts' fast twins on a CPU, for a few tokens: router scores, the choice of experts, and their products.

Scores and shares are float32, as in the reference for both dtypes of the kernels. N is tokens times experts chosen.
"""

import torch
from torch import Tensor

from pellucid.ops.native.library import HALF, call, constant, fresh, most
from pellucid.ops.native.twins import ROUTED, address, count, embedding, few, fits, leads, meets, numbers, times
from pellucid.ops.precision import wide


def fits_scores(*x: Tensor) -> bool:
    """True if these are float32 scores of a few tokens."""
    return few(x[0]) and x[0].dtype is wide(torch.bfloat16) and fits(*x)


def softmax(x: Tensor) -> Tensor:
    """Compute the softmax of rows [... E]."""
    y = fresh(tuple(x.shape), x.dtype)
    call("softmax", 0, (x,), (y,), x=x.data_ptr(), y=y.data_ptr(), rows=count(x), width=x.shape[-1])
    return y


def correct(x: Tensor, by: Tensor) -> Tensor:
    """Add by [E] to rows x [... E]."""
    y = fresh(tuple(x.shape), x.dtype)
    call("correct", 0, (x, by), (y,), x=x.data_ptr(), by=by.data_ptr(), y=y.data_ptr(), rows=count(x), width=x.shape[-1])
    return y


def best(x: Tensor, chosen: int, groups: int, groups_chosen: int, few: int) -> Tensor:
    """Return the indices of the `chosen` largest of each row [... E] in its best groups, in falling order: LongTensor [... A].

    groups_chosen: the number of best groups.  few: a group ranks by the sum of its `few` largest.
    """
    y = fresh((*x.shape[:-1], chosen), torch.int64)
    call(
        "best", 0, (x,), (y,), x=x.data_ptr(), to=y.data_ptr(), rows=count(x), width=x.shape[-1], chosen=chosen, groups=groups,
        groups_chosen=groups_chosen, few=few,
    )  # fmt: skip
    return y


def shares(x: Tensor, chosen: Tensor, normalised: bool, scale: float, least: float) -> Tensor:
    """Take the scores [B T E] of the chosen [B T A], over their sum plus `least` if `normalised`, times scale. Returns [B T A]."""
    y = fresh(tuple(chosen.shape), x.dtype)
    call(
        "shares", 0, (x, chosen), (y,), x=x.data_ptr(), chosen=chosen.data_ptr(), y=y.data_ptr(), rows=count(x), width=x.shape[-1],
        count=chosen.shape[-1], normalised=int(normalised), scale=scale, least=least,
    )  # fmt: skip
    return y


def mix(x: Tensor, chosen: Tensor, near: float) -> Tensor:
    """Compute SparseMixer's shares of the chosen [B T A] from logits [B T E]."""
    y = fresh(tuple(chosen.shape), x.dtype)
    call(
        "mix", 0, (x, chosen), (y,), x=x.data_ptr(), chosen=chosen.data_ptr(), y=y.data_ptr(), rows=count(x), width=x.shape[-1],
        count=chosen.shape[-1], near=near,
    )  # fmt: skip
    return y


def fits_sort(chosen: Tensor, x: Tensor) -> bool:
    return few(x) and numbers(chosen) and fits(x)


def sort(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort choices [B T A] by expert. Returns each row's choice [N], the token that it reads [N], each expert's end [E]."""
    n = chosen.numel()
    order, token, ends = fresh((n,), torch.int64), fresh((n,), torch.int64), fresh((experts,), torch.int32)
    call(
        "sort", 0, (chosen,), (order, token, ends), chosen=chosen.data_ptr(), order=order.data_ptr(), token=token.data_ptr(),
        ends=ends.data_ptr(), rows=count(chosen), count=chosen.shape[-1], experts=experts,
    )  # fmt: skip
    return order, token, ends


def fits_experts(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> bool:
    some = 0 < rows.shape[0] <= most(ROUTED) or (leads(rows.dtype) and rows.numel() > 0)
    some = some and weight.ndim == 3 and ends.shape == weight.shape[:1] and meets(rows, weight, bias)
    return some and ends.dtype is torch.int32 and ends.is_contiguous() and fits(rows, weight, bias)


def experts(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows [N in], sorted by expert, by weight [E out in], and add bias [E out]. Returns [N out]."""
    E, n, k = weight.shape
    y = fresh((rows.shape[0], n), rows.dtype)
    reads = tuple(t for t in (rows, weight, ends, bias) if t is not None)
    call(
        "experts", HALF[rows.dtype], reads, (y,), w=weight.data_ptr(), x=rows.data_ptr(), y=y.data_ptr(), bias=address(bias),
        ends=ends.data_ptr(), rows=rows.shape[0], experts=E, n=n, k=k,
    )  # fmt: skip
    return y


def fits_shares(rows: Tensor, share: Tensor, order: Tensor) -> bool:
    return few(share) and share.dtype is wide(torch.bfloat16) and numbers(order) and fits(share) and fits(rows)


def weigh(rows: Tensor, share: Tensor, order: Tensor) -> Tensor:
    """Multiply sorted rows [N D] by their shares [B T A]."""
    y = fresh(tuple(rows.shape), rows.dtype)
    call(
        "weigh", HALF[rows.dtype], (rows, share, order), (y,), x=rows.data_ptr(), share=share.data_ptr(), order=order.data_ptr(),
        y=y.data_ptr(), rows=rows.shape[0], width=rows.shape[1],
    )  # fmt: skip
    return y


def scaled_shares(share: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
    """Multiply shares [B T A] by the factors [E] of their experts, which a plan keeps unless they have the dtype of shares."""
    with constant():
        table = factors.to(share.dtype)[:, None]
    return times(share, embedding(chosen, table).view(share.shape))


def multiplied(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply x [B T D] by a number, factor [1], which is read where it lies if it has the dtype of shares, and else kept in a plan."""
    y, rows = fresh(tuple(x.shape), x.dtype), count(x)
    with constant():
        order, share = torch.zeros(rows, dtype=torch.int64), factor.to(wide(torch.bfloat16))
    call(
        "weigh", HALF[x.dtype], (x, share, order), (y,), x=x.data_ptr(), share=share.data_ptr(), order=order.data_ptr(), y=y.data_ptr(),
        rows=rows, width=x.shape[-1],
    )  # fmt: skip
    return y


def combine(rows: Tensor, share: Tensor | None, order: Tensor, like: Tensor) -> Tensor:
    """Sum sorted rows [N D] by token, times their shares [B T A] unless None. Returns [B T D], the shape of `like`."""
    y, tokens = fresh(tuple(like.shape), rows.dtype), count(like)
    reads = tuple(t for t in (rows, share, order) if t is not None)
    call(
        "combine", HALF[rows.dtype], reads, (y,), x=rows.data_ptr(), share=address(share), order=order.data_ptr(), y=y.data_ptr(),
        rows=tokens, count=rows.shape[0] // tokens, width=rows.shape[1],
    )  # fmt: skip
    return y
