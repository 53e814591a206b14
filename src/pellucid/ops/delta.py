"""The gated delta rule (arXiv 2412.06464): a matrix of each head that every token rewrites.

    S <- decay · S + k (beta · (v − decay · Sᵀk))ᵀ        y = Sᵀq

S is a memory of values by keys: it fades by `decay`, loses a part `beta` of what it holds under k, and gains as much of v there.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.batch.states import StatePages, States, TextStates
from pellucid.ops import native
from pellucid.ops.kinds import Operands, OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import here, note
from pellucid.watching.terms import Index, Terms


def delta_text(m: Operands) -> str:
    """Write the product of a query and the state that keys, values, decays and betas have made."""
    q, k, v, decay, beta = m.inputs
    return f"read({q}, delta({k}, {v}, {decay}, {beta}))"


DECAY = OpKind(
    "decay",
    lambda m: f"exp(−exp({m.weights[0]}) · softplus({m.x} + {m.weights[1]}))",
    labels={"decay": lambda m: f"exp(−exp({m.weights[0]}) · softplus({m.x} + {m.weights[1]}))"},
    template=lambda m: "exp(−exp({log_rate}) · softplus({x} + {bias}))",
)
DELTA_RULE = OpKind("delta rule", delta_text, product=True, labels={"state": lambda m: "S"}, result="product")


def decay(a: Tensor, log_rate: Tensor, bias: Tensor) -> Tensor:
    """Compute exp(−exp(log_rate) · softplus(a + bias)) of a [B T H], in float32 at least: how much of a state is left after each token."""

    def decays(log_rate: Tensor, bias: Tensor) -> Tensor:
        w = wide(a.dtype)
        return torch.exp(-log_rate.to(w).exp() * F.softplus(a.to(w) + bias.to(w)))

    y = native.decay(a, log_rate, bias) if native.fits_decay(a, log_rate, bias) else decays(log_rate, bias)

    def terms(i: Index) -> Terms:
        h = i[-1]
        return Terms(decay=y[i]).of(x=a[i], log_rate=log_rate[h], bias=bias[h])

    return note(y, DECAY.name, (a,), (log_rate, bias), terms, again=decays)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: States, scale: float) -> Tensor:
    """Rewrite each text's state by its rows one after another, and read each row's query from it. Returns y [B T H W].

    q, k [B T G K]: key head g serves the value heads of its group.  v [B T H W], decay, beta [B T H].  scale: of keys; of queries twice.
    FLOPs: 6·H·K·W a token, in three products of a state.
    """
    operands = q, k, v, decay, beta
    pages = states.batched
    first: list[Tensor] = []
    if pages is not None and native.fits_delta_rule(operands, pages):
        y = native.delta_rule(operands, pages, 1, scale)
    else:
        if here.watches and q.device.type != "meta":  # a cell is explained after the pages have moved on
            first = [t.first(shape_of(k, v), decay.dtype) for t in states.texts]
        parts = [one(t, tuple(x[:, t.rows] for x in operands), scale) for t in states.texts]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def terms(i: Index) -> Terms:
        b, t, h, w = i
        n, text = next((n, s) for n, s in enumerate(states.texts) if t in range(q.shape[1])[s.rows])
        own = tuple(x[b : b + 1, text.rows] for x in operands)
        row = t - (text.rows.start or 0)
        cut = TextStates(slice(None), text.positions[b : b + 1, : row + 1], text.padded)
        state = run(tuple(x[:, : row + 1] for x in own), cut, first[n][b : b + 1], scale)[1]
        return Terms(q=q[b, t, h // (v.shape[2] // q.shape[2])].double() * scale * scale, state=state[0, h, :, w])

    flops = 6 * v.numel() * k.shape[3]
    return note(y, DELTA_RULE.name, operands, (), terms, flops, settings=lambda: {"scale": scale})


def shape_of(k: Tensor, v: Tensor) -> tuple[int, int, int]:
    """Return the shape of a text's state, [H K W]."""
    return v.shape[2], k.shape[3], v.shape[3]


def one(text: TextStates, operands: tuple[Tensor, ...], scale: float) -> Tensor:
    """Run one text's rows, or a plain batch's, by the kernel if it fits."""
    q, k, v, decay, _ = operands
    if q.device.type == "meta":
        return torch.empty_like(v)
    own = tuple(x.contiguous() for x in operands)
    length, at = q.shape[1], text.positions.contiguous()
    if text.pages is not None:
        pages = replace(text.pages, positions=at)
    else:  # a page for each text
        table = torch.arange(len(q))[:, None].expand(-1, length).reshape(-1, 1)
        pages = StatePages(decay.new_empty(len(q), *shape_of(k, v)), table, length + 1, at)
    if not text.padded and native.fits_delta_rule(own, pages):
        return native.delta_rule(own, pages, length, scale)
    return run(operands, text, text.first(shape_of(k, v), decay.dtype), scale)[0]


def run(operands: tuple[Tensor, ...], text: TextStates, state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Compute the rule step by step from a state [B H K W]. Returns y [B T H W] and the last state."""
    q, k, v, decay, beta = operands
    w, heads = decay.dtype, v.shape[2] // q.shape[2]
    q, k = (x.to(w).repeat_interleave(heads, 2) for x in (q * scale * scale, k * scale))
    v, beta = v.to(w), beta.to(w)
    if text.padded:  # padding leaves a state as it is
        real = (text.positions >= 0)[..., None]
        decay, beta = torch.where(real, decay, 1.0), torch.where(real, beta, 0.0)
    y = []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, None, None]
        wrote = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkw,bhk->bhw", state, k[:, t]))
        state = state + k[:, t, ..., None] * wrote[..., None, :]
        y.append(torch.einsum("bhkw,bhk->bhw", state, q[:, t]))
        text.keep(t, state)
    return torch.stack(y, 1).to(operands[2].dtype), state
