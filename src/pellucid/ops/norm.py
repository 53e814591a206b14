"""Norms: a row over its root mean square (arXiv 1910.07467), or less its mean over its deviation (arXiv 1607.06450), times a weight."""

import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.precision import wide
from pellucid.tap import Index, Terms, note


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [... D] / sqrt(mean(x²) + eps) · weight. The quotient is rounded to x's dtype before the weight multiplies it, as in Llama."""
    if native.fits_norm(x, weight):
        y = native.norm(x, weight, None, eps, centred=False)
    else:
        w = x.to(wide(x.dtype))
        y = (w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
        y = y if weight is None else y * weight

    def terms(i: Index) -> Terms:
        times = 1.0 if weight is None else weight[i[-1]]
        return Terms(x=x[i], inverse=torch.rsqrt(x[i[:-1]].double().pow(2).mean() + eps), weight=times)

    return note(y, "rms", (x,), (weight,), terms)


def rms_offset(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [... D] / sqrt(mean(x²) + eps) · (1 + weight), rounded to x's dtype once, at the end, as in Gemma."""
    if native.fits_norm(x, weight):
        y = native.norm(x, weight, None, eps, centred=False, offset=True)
    else:
        w = x.to(wide(x.dtype))
        y = (w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight.to(w.dtype))).to(x.dtype)

    def terms(i: Index) -> Terms:
        return Terms(x=x[i], inverse=torch.rsqrt(x[i[:-1]].double().pow(2).mean() + eps), weight=1.0 + weight[i[-1]].double())

    return note(y, "rms", (x,), (weight,), terms)


def layer(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x [... D] - mean) / sqrt(variance + eps) · weight + bias."""
    if native.fits_norm(x, weight, bias):
        y = native.norm(x, weight, bias, eps, centred=True)
    else:
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def terms(i: Index) -> Terms:
        row = x[i[:-1]].double()
        inverse = 1.0 / (row.var(unbiased=False) + eps).sqrt()
        added, one = ([], []) if bias is None else ([bias[i[-1]]], [1.0])
        return Terms(x=[x[i], -row.mean(), *added], inverse=[inverse, inverse, *one], weight=[weight[i[-1]], weight[i[-1]], *one])

    return note(y, "layer norm", (x,), (weight, bias), terms)
