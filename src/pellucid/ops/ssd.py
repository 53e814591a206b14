"""Mamba-2's scan (state space duality, arXiv 2405.21060): a matrix of each head that every token fades and adds to.

    S <- decay · S + B (dt · x)ᵀ        y = Sᵀ C + D · x        decay = exp(−exp(A) · dt)

It is the delta rule that never reads before it writes: B is the key, C the query and x the value. dt, the size of a step in time, is made
of the token, so that one number decides how much of the state is left and how much of x is written.
"""

from torch import Tensor
from torch.nn import functional as F

from pellucid.batch.states import States
from pellucid.ops import native
from pellucid.ops.kinds import Operands, OpKind, plain
from pellucid.ops.precision import wide
from pellucid.ops.scan import Recurrence, ScanRows, scan
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms


def softplus_text(m: Operands) -> str:
    """Write a softplus between its limits, where there are any."""
    text, least, most = f"softplus({m.x} + {m.weights[0]})", m.setting("least"), m.setting("most")
    if least is not None and most is not None:
        return f"clamp({text}, {plain(least)}, {plain(most)})"
    return f"max({text}, {plain(least)})" if least is not None else text if most is None else f"min({text}, {plain(most)})"


def decay_text(m: Operands) -> str:
    """Write the share of a state that is left after a token."""
    return f"exp(−exp({m.weights[0]}) · {m.x})"


SOFTPLUS = OpKind(
    "softplus",
    softplus_text,
    labels={"softplus": softplus_text},
    template=lambda m: "" if {"least", "most"} & m.seen.settings.keys() else "softplus({x} + {bias})",
)
DECAY = OpKind("decay", decay_text, labels={"decay": decay_text}, template=lambda m: "exp(−exp({log_rate}) · {x})")
SSD = OpKind(
    "ssd",
    lambda m: f"read({m.inputs[0]}, state) + {m.weights[0]} · {m.inputs[2]}",
    product=True,
    labels={"state": lambda m: "state", "skip": lambda m: f"{m.weights[0]} · {m.inputs[2]}"},
    result="product",
)
SSD_STATE = OpKind(
    "ssd state",
    lambda m: f"ssd({', '.join(m.inputs)})",
    product=True,
    labels={"before": lambda m: "S", "write": lambda m: "B (dt · x)ᵀ"},
    template=lambda m: "",
)
HOW = Recurrence(SSD, SSD_STATE, corrects=False)


def softplus(x: Tensor, bias: Tensor, least: float = 0.0, most: float | None = None) -> Tensor:
    """Compute ln(1 + e^(x + bias)) of x [B T H], in float32 at least, and no less than `least` and no more than `most`."""

    def computed(bias: Tensor) -> Tensor:
        w = wide(x.dtype)
        return F.softplus(x.to(w) + bias.to(w)).clamp(least, most)

    y = native.softplus(x, bias, least, most) if native.fits_softplus(x, bias) else computed(bias)

    def terms(i: Index) -> Terms:
        return Terms(softplus=y[i]).of(x=x[i], bias=bias[i[-1]])

    limits = ({"least": least} if least > 0 else {}) | ({"most": most} if most is not None else {})
    return note(y, SOFTPLUS.name, (x,), (bias,), terms, settings=lambda: limits, again=computed)


def decay(dt: Tensor, log_rate: Tensor) -> Tensor:
    """Compute exp(−exp(log_rate) · dt) of dt [B T H]: how much of a state is left after each token.

    By channel: of dt [B T W] and log_rate [K W], how much of each of its numbers is left [B T K W].
    """

    def computed(log_rate: Tensor) -> Tensor:
        return (-log_rate.to(dt.dtype).exp() * (dt if log_rate.ndim == 1 else dt[..., None, :])).exp()

    y = native.decay(dt, log_rate) if native.fits_decay(dt, log_rate) else computed(log_rate)

    def terms(i: Index) -> Terms:
        return Terms(decay=y[i]).of(x=dt[(*i[:2], i[-1])], log_rate=log_rate[i[2:]])

    return note(y, DECAY.name, (dt,), (log_rate,), terms, again=computed)


def ssd(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, decay: Tensor, skip: Tensor, states: States) -> Tensor:
    """Fade each text's state by its rows one after another, write dt · x under b, and read c from it. Returns y [B T H W].

    x [B T H W], b, c [B T G K]: those of a group serve its heads.  dt, decay [B T H].  skip [H]: D, what of x is added.
    FLOPs: 4·H·K·W a token, in two products of a state.
    """
    return scan(ScanRows(c, b, x, decay, dt), states, HOW, skip)
