"""Norms: a row divided by its root mean square (arXiv 1910.07467), or centred and divided by its deviation (arXiv 1607.06450)."""

import torch
from torch import Tensor

from pellucid.ops import gpu, native
from pellucid.ops.kinds import Operands, OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms


def gain(m: Operands) -> str:
    """Write the factor of a norm's weight."""
    return f"(1 + {m.weights[0]})" if m.setting("offset") else m.weights[0]


RMS = OpKind(
    "rms",
    lambda m: f"{m.x} / rms({m.x})" + (f" · {gain(m)}" if m.weights else ""),
    labels={"over": lambda m: f"1/rms({m.x})", "gain": gain},
    template=lambda m: "{x} / {rms}" + (" · {gain}" if m.setting("offset") else " · {weight}" * bool(m.weights)),
    result="norm",
)
RMS_HEADS = OpKind(
    "joint rms",
    lambda m: f"{m.x} / rms_heads({m.x}) · {m.weights[0]}",
    labels={"over": lambda m: f"1/rms_heads({m.x})"},
    template=lambda m: "{x} / {rms} · {weight}",
    result="norm",
)
RMS_GROUPS = OpKind(
    "group rms",
    lambda m: f"{m.x} / rms_groups({m.x}) · {m.weights[0]}",
    labels={"over": lambda m: f"1/rms_groups({m.x})"},
    template=lambda m: "{x} / {rms} · {weight}",
    result="norm",
)
LAYER_NORM = OpKind(
    "layer norm",
    lambda m: f"({m.x} − μ) / σ" + (f" · {gain(m)}" if m.weights else "") + m.bias,
    labels={"centred": lambda m: f"{m.x} − μ", "over": lambda m: "1/σ", "gain": gain},
    template=lambda m: (
        "({x} − {mean}) / {deviation}"
        + (" · {gain}" if m.setting("offset") else " · {weight}" * bool(m.weights))
        + " + {bias}" * len(m.biases)
    ),
    result="norm",
)


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Compute x [... D] / sqrt(mean(x²) + eps) · weight. As in Llama, the quotient is rounded to x's dtype before the weight's product."""
    y = by_row(x, weight, eps)

    def terms(i: Index) -> Terms:
        return over_rms(x, i, eps, {} if weight is None else {"weight": weight[i[-1]]})

    return note(y, RMS.name, (x,), (weight,), terms, settings=lambda: {"eps": eps}, again=lambda weight: rms(x, weight, eps))


def by_row(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Divide each row of x by its root mean square, and multiply by weight."""
    if native.fits_norm(x, weight):
        return native.norm(x, weight, None, eps, centred=False)
    if gpu.fits_norm(x, weight):
        return gpu.norm(x, weight, None, eps, centred=False)
    w = x.to(wide(x.dtype))
    y = (w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else y * weight


def over_rms(x: Tensor, i: Index, eps: float, gain: dict[str, Tensor]) -> Terms:
    """Return the terms of cell i: x over its row's root mean square, times a gain."""
    size = (x[i[:-1]].double().pow(2).mean() + eps).sqrt()
    return Terms(x=x[i], over=1.0 / size, **gain).of(rms=size)


def rms_heads(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x [... H K] / sqrt(mean(x²) + eps) · weight [H·K], the mean over all heads of a row together, as in OLMo 2."""
    y = by_row(x.flatten(-2), weight, eps).unflatten(-1, x.shape[-2:])

    def terms(i: Index) -> Terms:
        size = (x[i[:-2]].double().pow(2).mean() + eps).sqrt()
        return Terms(x=x[i], over=1.0 / size, weight=weight[i[-2] * x.shape[-1] + i[-1]]).of(rms=size)

    return note(y, RMS_HEADS.name, (x,), (weight,), terms, settings=lambda: {"eps": eps}, again=lambda weight: rms_heads(x, weight, eps))


def rms_groups(x: Tensor, weight: Tensor, eps: float, groups: int) -> Tensor:
    """Compute x [... H W] / sqrt(mean(x²) + eps) · weight [H·W], the mean over the heads of each group of a row together."""
    if groups == 1:
        return rms_heads(x, weight, eps)
    each = x.shape[-2] // groups
    rows = x.unflatten(-2, (groups, each)).flatten(-2)
    y = by_row(rows, weight.view(groups, -1), eps).unflatten(-1, (each, -1)).flatten(-3, -2)

    def terms(i: Index) -> Terms:
        size = (rows[(*i[:-2], i[-2] // each)].double().pow(2).mean() + eps).sqrt()
        return Terms(x=x[i], over=1.0 / size, weight=weight[i[-2] * x.shape[-1] + i[-1]]).of(rms=size)

    def again(weight: Tensor) -> Tensor:
        return rms_groups(x, weight, eps, groups)

    return note(y, RMS_GROUPS.name, (x,), (weight,), terms, settings=lambda: {"eps": eps, "groups": groups}, again=again)


def rms_offset(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x [... D] / sqrt(mean(x²) + eps) · (1 + weight), rounded to x's dtype once, at the end, as in Gemma."""
    if native.fits_norm(x, weight):
        y = native.norm(x, weight, None, eps, centred=False, offset=True)
    elif gpu.fits_norm(x, weight):
        y = gpu.norm(x, weight, None, eps, centred=False, offset=True)
    else:
        w = x.to(wide(x.dtype))
        y = (w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight.to(w.dtype))).to(x.dtype)

    def terms(i: Index) -> Terms:
        return over_rms(x, i, eps, {"gain": 1.0 + weight[i[-1]].double()})

    def again(weight: Tensor) -> Tensor:
        return rms_offset(x, weight, eps)

    return note(y, RMS.name, (x,), (weight,), terms, settings=lambda: {"eps": eps, "offset": 1}, again=again)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Compute (x [... D] - mean) / sqrt(variance + eps) · weight + bias, or without either."""
    if native.fits_norm(x, weight, bias):
        y = native.norm(x, weight, bias, eps, centred=True)
    elif gpu.fits_norm(x, weight, bias):
        y = gpu.norm(x, weight, bias, eps, centred=True)
    else:
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def terms(i: Index) -> Terms:
        return over_deviation(x, i, eps, {} if weight is None else {"weight": weight[i[-1]]}, bias)

    def again(weight: Tensor, bias: Tensor | None) -> Tensor:
        return layer(x, weight, bias, eps)

    return note(y, LAYER_NORM.name, (x,), (weight, bias), terms, settings=lambda: {"eps": eps}, again=again)


def layer_heads(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute (x [... H K] - mean) / sqrt(variance + eps) · weight [H·K], each head by itself, as in Command R+."""
    own = weight.view(x.shape[-2:])
    if native.fits_norm(x, own):
        y = native.norm(x, own, None, eps, centred=True)
    elif gpu.fits_norm(x, own):
        y = gpu.norm(x, own, None, eps, centred=True)
    else:
        w = torch.nn.functional.layer_norm(x.to(wide(x.dtype)), x.shape[-1:], eps=eps)
        y = (w * own.to(w.dtype)).to(x.dtype)

    def terms(i: Index) -> Terms:
        return over_deviation(x, i, eps, {"weight": own[i[-2:]]}, None)

    def again(weight: Tensor) -> Tensor:
        return layer_heads(x, weight, eps)

    return note(y, LAYER_NORM.name, (x,), (weight,), terms, settings=lambda: {"eps": eps}, again=again)


def over_deviation(x: Tensor, i: Index, eps: float, gain: dict[str, Tensor], bias: Tensor | None) -> Terms:
    """Return the terms of cell i: x less its row's mean, over its row's deviation, times a gain, plus a bias."""
    row = x[i[:-1]].double()
    mean, deviation = row.mean(), (row.var(unbiased=False) + eps).sqrt()
    terms = Terms(centred=x[i].double() - mean, over=1.0 / deviation, **gain)
    return terms.plus(bias=None if bias is None else bias[i[-1]]).of(x=x[i], mean=mean, deviation=deviation)


def layer_offset(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute (x [... D] - mean) / sqrt(variance + eps) · (1 + weight) + bias, as in Nemotron."""
    if native.fits_norm(x, weight, bias):
        y = native.norm(x, weight, bias, eps, centred=True, offset=True)
    elif gpu.fits_norm(x, weight, bias):
        y = gpu.norm(x, weight, bias, eps, centred=True, offset=True)
    else:
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight + 1.0, bias, eps)

    def terms(i: Index) -> Terms:
        return over_deviation(x, i, eps, {"gain": 1.0 + weight[i[-1]].double()}, bias)

    def again(weight: Tensor, bias: Tensor) -> Tensor:
        return layer_offset(x, weight, bias, eps)

    return note(y, LAYER_NORM.name, (x,), (weight, bias), terms, settings=lambda: {"eps": eps, "offset": 1}, again=again)
