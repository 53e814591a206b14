"""The gated delta rule (arXiv 2412.06464): a matrix of each head that every token rewrites.

    S <- decay · S + k (beta · (v − decay · Sᵀk))ᵀ        y = Sᵀq

S is a memory of values by keys: it fades by `decay`, loses a part `beta` of what it holds under k, and gains as much of v there.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.batch.kv_cache import PagedRows, Segment
from pellucid.batch.states import States, TextStates
from pellucid.ops import native
from pellucid.ops.kinds import Operands, OpKind
from pellucid.ops.precision import wide
from pellucid.watching.meta import META
from pellucid.watching.recomputing import gap, recomputing
from pellucid.watching.tap import as_reference, deferred, here, in_segment, inside, note, tap, visit_segments
from pellucid.watching.terms import Index, Terms


def decay_text(m: Operands) -> str:
    """Write the share of a state that is left after a token."""
    return f"exp(−exp({m.weights[0]}) · softplus({m.x} + {m.weights[1]}))"


DECAY = OpKind(
    "decay",
    decay_text,
    labels={"decay": decay_text},
    template=lambda m: "exp(−exp({log_rate}) · softplus({x} + {bias}))",
)
DELTA_RULE = OpKind(
    "delta rule",
    lambda m: f"read({m.inputs[0]}, state)",
    product=True,
    labels={"state": lambda m: "state"},
    result="product",
)
STATE = OpKind(
    "state",
    lambda m: f"delta({', '.join(m.inputs)})",
    product=True,
    labels={"before": lambda m: "S", "write": lambda m: "k (beta · (v − Sᵀk))ᵀ"},
    template=lambda m: "",
)
INSIDE = ("state",)
LARGE = 64 << 20  # bytes: a state of each token may be megabytes, so that a long prompt's would fill the memory
Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # q, k, v, decay, beta


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
    operands, pages = (q, k, v, decay, beta), states.batched
    texts = [Scan(text, operands, scale) for text in states.texts]
    if inside(*INSIDE) != "reference" and pages is not None and native.fits_delta_rule(operands, pages):
        y = native.delta_rule(operands, pages, 1, scale)
        visit_segments(texts, INSIDE, lambda mode, text: text.show(mode, y[:, text.rows]))
    else:
        parts = []
        for text in texts:
            with in_segment(text):
                parts.append(text.run())
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def terms(i: Index) -> Terms:
        b, t, h, w = i
        text = next(s for s in texts if t in range(q.shape[1])[s.rows])
        state = text.until(b, t - (text.rows.start or 0))
        return Terms(q=q[b, t, h // (v.shape[2] // q.shape[2])].double() * scale * scale, state=state[h, :, w])

    flops = 6 * v.numel() * k.shape[3]
    return note(y, DELTA_RULE.name, operands, (), terms, flops, settings=lambda: {"scale": scale})


class Scan(Segment):
    """The rule over the rows of one text, or of a plain batch's texts at once. operands: of the whole step.

    first: while a watch is on, the states before the first row: pages have moved on when a cell is explained.
    """

    def __init__(self, text: TextStates, operands: Five, scale: float) -> None:
        super().__init__(text.request, text.rows, text.positions, lambda: text.positions, lambda: ())
        self.text, self.named, self.scale = text, operands[1:], scale
        q, k, v, decay, beta = (x[:, text.rows] for x in operands)
        self.operands: Five = q, k, v, decay, beta
        self.shape = v.shape[2], k.shape[3], v.shape[3]
        self.first = text.first(self.shape, decay.dtype) if here.watches and q.device.type != "meta" else None

    def run(self) -> Tensor:
        """Compute y by the fastest twin that fits, and tap the states if a watch wants them."""
        mode = inside(*INSIDE)
        if mode == "reference":
            with as_reference():
                return self.by_step(self.text, tapped=True)[0]
        y = self.by_kernel()
        y = self.by_step(self.text)[0] if y is None else y
        if mode is not None:
            self.show(mode, y)
        return y

    def by_kernel(self) -> Tensor | None:
        """Compute y by the kernel, or on meta its shape, unless autograd keeps what each token does. None if neither fits."""
        q, k, v, decay, beta = (x.contiguous() for x in self.operands)
        text, length, at = self.text, q.shape[1], self.text.positions.contiguous()
        if q.device.type == "meta" and not torch.is_grad_enabled():
            return torch.empty_like(v)
        if text.pages is not None:
            pages = replace(text.pages, positions=at)
        else:  # a page for each text
            table = torch.arange(len(q))[:, None].expand(-1, length).reshape(-1, 1)
            pages = PagedRows((decay.new_empty(2 * len(q), *self.shape),), table, length + 1, at)
        if text.padded or not native.fits_delta_rule((q, k, v, decay, beta), pages):
            return None
        return native.delta_rule((q, k, v, decay, beta), pages, length, self.scale)

    def show(self, mode: str, y: Tensor) -> None:
        """Tap the states beside y: their values if mode is "beside" and they are small, else shapes, and values on demand."""
        if mode == "beside" and y.shape[0] * y.shape[1] * prod(self.shape) * self.operands[3].itemsize <= LARGE:
            with recomputing(y) as compare:
                compare(self.again())
        else:
            with deferred(lambda: gap(self.again(), y)):
                self.tap_states(self.operands[3].new_empty((*y.shape[:2], *self.shape), device=META))

    def again(self) -> Tensor:
        """Compute y once more, with its states tapped; nothing is stored."""
        return self.by_step(replace(self.text, pages=None), tapped=True)[0]

    def until(self, b: int, row: int) -> Tensor:
        """Return the state [H K W] of text b after a row."""
        text = replace(self.text, pages=None, positions=self.text.positions[:, : row + 1])
        return self.by_step(text)[1][b]

    def by_step(self, text: TextStates, tapped: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the rule token by token, as far as text's positions go. Returns y [B T H W] and the last states [B H K W]."""
        rows = text.positions.shape[1]
        q, k, v, decay, beta = (x[:, :rows] for x in self.operands)
        w, heads = decay.dtype, self.shape[0] // q.shape[2]
        q, k = (x.to(w).repeat_interleave(heads, 2) for x in (q * self.scale * self.scale, k * self.scale))
        v, beta = v.to(w), beta.to(w)
        if text.padded:  # padding leaves a state as it is
            real = (text.positions >= 0)[..., None]
            decay, beta = torch.where(real, decay, 1.0), torch.where(real, beta, 0.0)
        state = text.first(self.shape, w) if self.first is None else self.first
        if decay.is_meta and not tapped:  # what autograd keeps of all tokens at once: a loop over a context of 262,144 has no end
            state, _ = rewrite(state.expand(rows, *state.shape).requires_grad_(), *(x.transpose(0, 1) for x in (k, v, decay, beta)))
            read = torch.einsum("tbhkw,bthk->tbhw", state, q)
            return read.transpose(0, 1).contiguous().to(self.operands[2].dtype), state[-1]
        states, wrote, y = [state], [], []
        for t in range(rows):
            state, row = rewrite(state, k[:, t], v[:, t], decay[:, t], beta[:, t])
            wrote.append(row)
            states += [state] if tapped else []
            y += [] if tapped else [torch.einsum("bhkw,bhk->bhw", state, q[:, t])]
            text.keep(t, state)
        if not tapped:
            return torch.stack(y, 1).to(self.operands[2].dtype), state

        def terms(i: Index) -> Terms:
            b, t, h, key, value = i
            before = Terms(decay=decay[b, t, h], before=states[t][b, h, key, value])
            return before.plus(write=k[b, t, h, key].double() * wrote[t][b, h, value].double())

        table = self.tap_states(torch.stack(states[1:], 1), terms)
        return torch.einsum("bthkw,bthk->bthw", table, q).to(self.operands[2].dtype), state

    def tap_states(self, table: Tensor, terms: Callable[[Index], Terms] | None = None) -> Tensor:
        """Note and tap the states after each token [B T H K W]."""
        return tap(note(table, STATE.name, self.named, (), terms, settings=lambda: {"scale": self.scale}), "state: B T H K W")


def rewrite(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Fade a state [B H K W], and write what its key k does not yet read back as v. Returns the new state and what was written [B H W]."""
    faded = state * decay[..., None, None]
    row = beta[..., None] * (v - torch.einsum("...hkw,...hk->...hw", faded, k))
    return faded + k[..., None] * row[..., None, :], row
