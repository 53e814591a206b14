"""The activation of a feed-forward part, alone or gating a second product."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.ops import native
from pellucid.tap import Terms, note


def gelu_bloom(x: Tensor) -> Tensor:
    """BLOOM's GELU by tanh: √(2/π) has eight digits, which float64 sees."""
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1.0 + 0.044715 * x * x)))


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_bloom": gelu_bloom,
}


def clamped(g: Tensor) -> Tensor:
    """gpt-oss's activation of a gate: x · sigmoid(1.702 x), x at most 7."""
    g = g.clamp(max=7.0)
    return g * torch.sigmoid(g * 1.702)


def gate(g: Tensor, up: Tensor | None, act: str) -> Tensor:
    """act(g) · up; act(g) alone where there is no up; "clamped" is gpt-oss's pair, whose up lies in -7 ... 7 and gains 1."""
    if act == "clamped":
        assert up is not None
        y = native.gate(g, up, act) if native.fits_gate(g, up, act) else clamped(g) * (up.clamp(-7.0, 7.0) + 1)
        return note(y, "gate", (g, up), (), lambda i: Terms(act=clamped(g[i].double()), up=up[i].double().clamp(-7.0, 7.0) + 1))
    f = ACTS[act]
    y = native.gate(g, up, act) if native.fits_gate(g, up, act) else f(g) if up is None else f(g) * up
    if up is None:
        return note(y, "act", (g,), (), lambda i: Terms(act=y[i]))
    return note(y, "gate", (g, up), (), lambda i: Terms(act=f(g[i].double()), up=up[i]))


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """x [B T D] times the sigmoid of gate [B T 1]."""
    y = native.gated(x, gate) if native.fits_gated(x, gate) else x * torch.sigmoid(gate)
    return note(y, "gated", (x, gate), (), lambda i: Terms(x=x[i], share=torch.sigmoid(gate[i[:-1]])))


def capped(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): nearly x where x is small, never beyond cap (Gemma 2, arXiv 2408.00118)."""
    return each(native.capped(x, cap) if native.fits_each(x) else cap * torch.tanh(x / cap), "cap", x)


def each(out: Tensor, op: str, *inputs: Tensor, weights: tuple[Tensor | None, ...] = ()) -> Tensor:
    """An elementwise result, or a choice: the cell is its own one summand."""
    return note(out, op, inputs, weights, lambda i: Terms(value=out[i]))
