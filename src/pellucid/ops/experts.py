"""Experts: rows are sorted by expert, each expert's matrix is read once, and the outputs are summed by token, times their shares.

No shape depends on the data: N = tokens × experts chosen.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.config import Moe
from pellucid.ops import gpu, native
from pellucid.ops.blocks import Blocks
from pellucid.ops.kinds import Operands, OpKind, masked, plain
from pellucid.ops.linear import times
from pellucid.ops.precision import wide
from pellucid.watching.tap import Settings, note
from pellucid.watching.terms import Index, Terms


def top_text(m: Operands) -> str:
    """Write the choice of the highest scores, from the best groups if there are groups. For experts, and for keys."""
    few, groups = m.setting("chosen", m.seen.shape[-1]), m.setting("groups")
    of = f"best({m.x}, {m.setting('groups_chosen')}, {groups}, {m.setting('group_best')})" if groups else m.x
    return f"top({of}{masked(m)}, {few})"


def share_text(m: Operands) -> str:
    """Write the affinities of the chosen experts, over their sum if they are normalised, times the scale."""
    mine, scale, least = f"{m.x}[{m.inputs[1]}]", m.setting("scale", 1), m.setting("least", 1e-20)
    over = f" / (Σ_A {mine}{f' + {plain(least)}' if least else ''})" if m.setting("normalised") else ""
    return mine + over + ("" if scale == 1 else f" · {plain(scale)}")


CORRECT = OpKind("correct", lambda m: f"{m.x} + {m.weights[0]}", result="corrected scores")
EXPERT = "formula.expert"  # the key of a sentence
TOP = OpKind(
    "top",
    top_text,
    labels={"expert": top_text, "chosen": top_text},
    template=lambda m: EXPERT if m.seen.dims.endswith(" A") else "",
    result="choice",
)
SHARE = OpKind(
    "share",
    share_text,
    labels={"x": lambda m: f"{m.x}[{m.inputs[1]}]", "over": lambda m: "1/Σ_A", "scale": lambda m: plain(m.setting("scale"))},
    template=lambda m: "{x}" + " / {sum}" * bool(m.setting("normalised")) + " · {scale}" * (m.setting("scale", 1) != 1),
    result="expert shares",
)
OWN = OpKind(
    "expert_scale",
    lambda m: f"{m.x} · {m.weights[0]}[{m.inputs[1]}]",
    labels={"weight": lambda m: f"{m.weights[0]}[{m.inputs[1]}]"},
)
MIXER = OpKind(
    "sparsemixer",
    lambda m: f"sparsemixer({m.x}, {m.inputs[1]}, {plain(m.setting('near'))})",
    labels={"e": lambda m: "1", "over": lambda m: "1/Σ e^…"},
    template=lambda m: "1 / Σ e^… = 1 / {sum}",
    result="expert shares",
)
EXPERTS = OpKind(
    "experts",
    lambda m: f"{m.x} · {m.weights[0]}[eₙ]ᵀ" + "".join(f" + {b}[eₙ]" for b in m.weights[1:]),
    product=True,
    labels={"weight": lambda m: f"{m.weights[0]}[eₙ]", "bias": lambda m: f"{m.weights[-1]}[eₙ]"},
)
WEIGHTED = OpKind("weighted", lambda m: f"{m.inputs[1]} · {m.inputs[0]}", labels={"share": lambda m: m.inputs[1]})
COMBINE = OpKind("combine", lambda m: f"Σ_A {' · '.join(reversed(m.inputs))}", labels={"share": lambda m: m.inputs[1]})


def corrected(x: Tensor, by: Tensor) -> Tensor:
    """Add a correction of each expert [E] to scores [B T E]."""
    y = native.correct(x, by) if native.fits_scores(x, by) else x + by
    return note(y, CORRECT.name, (x,), (by,), lambda i: Terms().plus(x=x[i], weight=by[i[-1]]))


def best(ranked: Tensor, spec: Moe) -> Tensor:
    """Choose the experts [B T A] of the highest ranks [B T E], from the groups whose best few ranks have the highest sums."""
    few = min(spec.group_best, ranked.shape[-1] // spec.groups)
    if native.fits_scores(ranked):
        y = native.best(ranked, spec.chosen, spec.groups, spec.groups_chosen, few)
    elif spec.groups == 1 and gpu.fits_choice(ranked, spec.chosen):
        y = gpu.best(ranked, spec.chosen)
    else:
        if spec.groups > 1:
            groups = ranked.unflatten(-1, (spec.groups, -1))
            top = groups.topk(few, -1)[0].sum(-1).topk(spec.groups_chosen, -1)[1]
            kept = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter(-1, top, True)
            left = groups.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
        else:
            left = ranked
        y = left.topk(spec.chosen, -1)[1]

    def settings() -> Settings:
        groups = {"groups": spec.groups, "groups_chosen": spec.groups_chosen, "group_best": few}
        return {"chosen": spec.chosen} | (groups if spec.groups > 1 else {})

    def terms(i: Index) -> Terms:
        return Terms(expert=y[i]).of(score=ranked[(*i[:-1], int(y[i]))])

    return note(y, TOP.name, (ranked,), (), terms, settings=settings)


def shares(affinity: Tensor, chosen: Tensor, spec: Moe) -> Tensor:
    """Return the weight of each chosen expert [B T A]; normalised, those of a token sum to the scale."""
    if native.fits_scores(affinity) and native.numbers(chosen):
        y = native.shares(affinity, chosen, spec.normalised, spec.scale, spec.least)
    elif gpu.fits_choice(affinity, spec.chosen) and gpu.fits_sort(chosen):
        y = gpu.shares(affinity, chosen, spec.normalised, spec.scale, spec.least)
    else:
        share = affinity.gather(-1, chosen)
        y = share / (share.sum(-1, keepdim=True) + spec.least if spec.normalised else 1.0) * spec.scale

    def settings() -> Settings:
        return {"normalised": spec.normalised, "scale": spec.scale} | ({"least": spec.least} if spec.normalised else {})

    def terms(i: Index) -> Terms:
        mine, total = affinity[(*i[:-1], int(chosen[i]))], affinity[i[:-1]][chosen[i[:-1]]].double().sum() + spec.least
        over = {"over": 1.0 / total} if spec.normalised else {}
        return Terms(x=mine, **over, **({} if spec.scale == 1 else {"scale": spec.scale})).of(sum=total)

    return note(y, SHARE.name, (affinity, chosen), (), terms, settings=settings)


def scaled_shares(share: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
    """Multiply the share of each chosen expert [B T A] by the expert's own factor, of factors [E]."""
    fast = native.fits_shares(share, share, chosen)
    y = native.scaled_shares(share, chosen, factors) if fast else share * factors.to(share.dtype)[chosen]

    def terms(i: Index) -> Terms:
        return Terms(x=share[i], weight=factors[int(chosen[i])])

    def again(factors: Tensor) -> Tensor:
        return share * factors.to(share.dtype)[chosen]

    return note(y, OWN.name, (share, chosen), (factors,), terms, again=again)


def mixed(logits: Tensor, chosen: Tensor, near: float) -> Tensor:
    """Return SparseMixer's weight of each chosen expert [B T A], from logits [B T E] (arXiv 2409.12136).

    A choice's weight is its part of a softmax over it and the experts near it, where better choices are left out. An expert is near if its
    logit is less than the choice's by at most `near` times the larger of the choice's logit and its own magnitude.
    """
    if native.fits_scores(logits) and native.numbers(chosen):
        y = native.mix(logits, chosen, near)
    else:
        rows, shares = logits, []
        for one in chosen.split(1, -1):
            mine = logits.gather(-1, one)
            far = (mine - logits) / logits.abs().maximum(mine) > near
            shares.append(1.0 / (rows.masked_fill(far, float("-inf")) - mine).exp().sum(-1, keepdim=True))
            rows = rows.scatter(-1, one, float("-inf"))
        y = torch.cat(shares, -1)

    def terms(i: Index) -> Terms:
        return Terms(e=1.0, over=y[i].double()).of(sum=1.0 / y[i].double())

    return note(y, MIXER.name, (logits, chosen), (), terms, settings=lambda: {"near": near})


def sort(chosen: Tensor, experts: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort choices [B T A] of rows x [B T D] by expert. Returns which choice each row is, the row it reads, each expert's end [E]."""
    if native.fits_sort(chosen, x):
        return native.sort(chosen, experts)
    if gpu.fits_sort(chosen):
        return gpu.sort(chosen, experts)
    flat = chosen.flatten()
    order = flat.argsort(stable=True)  # an unstable sort would make a batch differ from a lone run
    ends = torch.searchsorted(flat[order], torch.arange(experts, device=x.device), right=True).int()
    return order, order // chosen.shape[-1], ends


def grouped(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows [N in], sorted by expert, by their experts' weight [E out in], and add bias [E out]. Returns [N out].

    ends [E]: the end of each expert's rows; those before ends[0] are expert 0's. FLOPs: 2·N·in·out.
    """
    if native.fits_experts(rows, weight, ends, bias):
        y = native.experts(rows, weight, ends, bias)
    elif isinstance(weight, Blocks) and native.fits_experts_blocks(rows, weight, ends, bias):
        y = native.experts_blocks(rows, weight, ends, bias)
    elif gpu.fits_experts(rows, weight, ends, bias):
        y = gpu.experts(rows, weight, ends, bias)
    elif gpu.capturing():
        y = one_by_one(rows, weight, ends, bias)
    elif bias is None and fits_grouped_mm(rows, weight):
        y = F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    else:
        y = grouped_reference(rows, weight, ends, bias)

    def terms(i: Index) -> Terms:
        e = int(torch.searchsorted(ends, torch.tensor(i[0]), right=True))
        return Terms(x=rows[i[0]], weight=weight[e, i[1]]).plus(bias=None if bias is None else bias[e, i[1]]).of(expert=e)

    def again(weight: Tensor, bias: Tensor | None) -> Tensor:
        return grouped_reference(rows, weight, ends, bias)

    return note(y, EXPERTS.name, (rows,), (weight, bias), terms, 2 * y.numel() * weight.shape[2], again=again)


def grouped_reference(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply by one expert after another, in any dtype. On meta expert 0 takes all rows, which has the same shapes and saved tensors."""
    if rows.device.type == "meta":
        return F.linear(rows, weight[0], None if bias is None else bias[0])
    cuts = [0, *ends.tolist()]
    met = [(e, rows[a:b]) for e, (a, b) in enumerate(pairwise(cuts)) if a < b] or [(0, rows)]  # an expert without rows is not read
    return torch.cat([times(part, weight[e], None if bias is None else bias[e]) for e, part in met])


def one_by_one(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply each row by a copy of its expert's matrix: slow, but no number of a row is read on the host, so a graph may keep it."""
    e = torch.searchsorted(ends, torch.arange(len(rows), device=rows.device, dtype=ends.dtype), right=True)
    y = torch.bmm(weight[e], rows[:, :, None])[:, :, 0]
    return y if bias is None else y + bias[e]


def fits_grouped_mm(rows: Tensor, weight: Tensor) -> bool:
    """True if F.grouped_mm takes these. torch 2.13 on a CPU needs rows of a multiple of 16 bytes, no float64, no gradient, and while it
    compiles no float32.
    """
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
    """Multiply sorted rows [N D] by their shares [B T A], ahead of the experts."""
    fast = native.fits_shares(rows, share, order)
    y = native.weigh(rows, share, order) if fast else rows * share.flatten()[order, None].to(rows.dtype)
    return note(y, WEIGHTED.name, (rows, share), (), lambda i: Terms(x=rows[i], share=share.flatten()[order[i[0]]].to(rows.dtype)))


def combine(y: Tensor, share: Tensor, order: Tensor, like: Tensor, weighted: bool = False) -> Tensor:
    """Sum the sorted rows y [N D] of each token, times their shares [B T A] unless `weighted`. Returns [B T D], as `like`.

    Of ranks that have other experts each has fewer rows than choices.
    """
    chosen = share.shape[-1]
    if len(order) == share.numel() and native.fits_shares(y, share, order):
        out = native.combine(y, None if weighted else share, order, like)
    elif gpu.fits_combine(y, share, order):
        out = gpu.combine(y, share, order, like, weighted)
    else:
        rows = y if weighted else y * share.flatten()[order, None].to(y.dtype)
        if len(order) == share.numel() and y.is_cuda and not torch.is_grad_enabled():  # it would add in any order: two runs would differ
            out = torch.empty_like(rows).index_copy(0, order, rows).view(*like.shape[:2], chosen, -1).sum(2)
        else:
            out = torch.zeros_like(like.flatten(0, 1)).index_add(0, order // chosen, rows).view_as(like)

    def terms(i: Index) -> Terms:
        at = (order // chosen == i[0] * like.shape[1] + i[1]).nonzero().flatten()
        return Terms(x=y[at, i[2]], **({} if weighted else {"share": share.flatten()[order[at]]}))

    return note(out, COMBINE.name, (y,) if weighted else (y, share), (), terms)
