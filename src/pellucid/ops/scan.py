"""A matrix of each head that every token fades and adds a product to: what the delta rule and Mamba's scans have in common.

    S <- decay · S + k rowᵀ        y = Sᵀq + skip · v

    delta rule   row = beta · (v − decay · Sᵀk)         what S lacks under the key k
    Mamba-2      row = dt · v                           v itself: k, q and v are the paper's B, C and x
    Mamba-1      row = dt · v                           decay is a number for each one of S, dt and skip one for each of v

Tokens are taken one after another, by a kernel where it fits, so that a row has the same bits in any chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.batch.kv_cache import PagedRows, Segment
from pellucid.batch.states import States, TextStates
from pellucid.ops import native
from pellucid.ops.kinds import OpKind
from pellucid.watching.meta import META
from pellucid.watching.recomputing import gap, recomputing
from pellucid.watching.tap import as_reference, deferred, here, in_segment, inside, note, tap, visit_segments
from pellucid.watching.terms import Index, Terms

INSIDE = ("state",)
LARGE = 64 << 20  # bytes: a state of each token may be megabytes, so that a long prompt's would fill the memory


class ScanRows(NamedTuple):
    """The rows that a state is rewritten by: q, k [B T G K], v [B T H W], decay and rate [B T H]; rate: how much of a row is written.

    By channel, as `Recurrence.by_channel` says: decay [B T H K W], rate [B T H W].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    rate: Tensor


@dataclass(frozen=True)
class Recurrence:
    """One way to rewrite a state. op: of y.  state: of the states.  corrects: True if a row is what the state lacks, not v itself.

    scale: of keys; of queries twice.
    by_channel: True if each number of a state has its own decay, and each number of a row its own rate and skip.
    """

    op: OpKind
    state: OpKind
    corrects: bool
    scale: float = 1.0
    by_channel: bool = False

    @property
    def products(self) -> int:
        """Return the products of a state that a token costs: it is read, written, and read first where it is corrected."""
        return 2 + self.corrects

    def rewrite(self, state: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Fade a state [B H K W] and write a row under its key k. Returns the new state, and the row [B H W]."""
        if not self.by_channel:
            decay, rate = decay[..., None, None], rate[..., None]
        faded = state * decay
        row = rate * (v - torch.einsum("...hkw,...hk->...hw", faded, k) if self.corrects else v)
        return faded + k[..., None] * row[..., None, :], row

    def skipped(self, skip: Tensor, v: Tensor) -> Tensor:
        """Return what of rows v [... H W] is added to what is read: skip [H], or by channel [W], times v."""
        return (skip if self.by_channel else skip[:, None]) * v


def scan(operands: ScanRows, states: States, how: Recurrence, skip: Tensor | None = None) -> Tensor:
    """Rewrite each text's state by its rows one after another, and read each row's query from it. Returns y [B T H W].

    Key head g serves the heads of its group.  skip [H], by channel [W]: what of v is added to y.
    FLOPs: 2·H·K·W a token for each product of a state.
    """
    q, k, v, _, _ = operands
    pages = states.batched
    texts = [Scan(text, operands, how, skip) for text in states.texts]
    if inside(*INSIDE) != "reference" and pages is not None and native.fits_scan(operands, pages, how.corrects, skip):
        y = native.scan(operands, pages, 1, how.scale, how.corrects, skip)
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
        terms = Terms(q=q[b, t, h // (v.shape[2] // q.shape[2])].double() * how.scale * how.scale, state=state[h, :, w])
        return terms if skip is None else terms.plus(skip=skip[w if how.by_channel else h].double() * v[i].double())

    def again(weight: Tensor) -> Tensor:
        assert skip is not None
        return y + how.skipped(weight - skip, v).to(y.dtype)

    flops, weights = 2 * how.products * v.numel() * k.shape[3], () if skip is None else (skip,)
    return note(y, how.op.name, operands, weights, terms, flops, settings=lambda: {"scale": how.scale}, again=again)


class Scan(Segment):
    """The recurrence over the rows of one text, or of a plain batch's texts at once. operands: of the whole step.

    first: while a watch is on, the states before the first row: pages have moved on when a cell is explained.
    """

    def __init__(self, text: TextStates, operands: ScanRows, how: Recurrence, skip: Tensor | None) -> None:
        super().__init__(text.request, text.rows, text.positions, lambda: text.positions, lambda: ())
        self.text, self.named, self.how, self.skip = text, operands[1:], how, skip
        self.operands = ScanRows(*(x[:, text.rows] for x in operands))
        q, k, v, decay, _ = self.operands
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
        operands = ScanRows(*(x.contiguous() for x in self.operands))
        q, v, how = operands.q, operands.v, self.how
        text, length, at = self.text, q.shape[1], self.text.positions.contiguous()
        if q.device.type == "meta" and not torch.is_grad_enabled():
            return torch.empty_like(v)
        if text.pages is not None:
            pages = replace(text.pages, positions=at)
        else:  # a page for each text
            table = torch.arange(len(q)).repeat_interleave(length)[:, None]
            pages = PagedRows((operands.decay.new_empty(2 * len(q), *self.shape),), table, length + 1, at)
        if text.padded or not native.fits_scan(operands, pages, how.corrects, self.skip):
            return None
        return native.scan(operands, pages, length, how.scale, how.corrects, self.skip)

    def show(self, mode: str, y: Tensor) -> None:
        """Tap the states beside y: their values if mode is "beside" and they are small, else shapes, and values on demand."""
        if mode == "beside" and y.shape[0] * y.shape[1] * prod(self.shape) * self.operands.decay.itemsize <= LARGE:
            with recomputing(y) as compare:
                compare(self.again())
        else:
            with deferred(lambda: gap(self.again(), y)):
                self.tap_states(self.operands.decay.new_empty((*y.shape[:2], *self.shape), device=META))

    def again(self) -> Tensor:
        """Compute y once more, with its states tapped; nothing is stored."""
        return self.by_step(replace(self.text, pages=None), tapped=True)[0]

    def until(self, b: int, row: int) -> Tensor:
        """Return the state [H K W] of text b after a row."""
        text = replace(self.text, pages=None, positions=self.text.positions[:, : row + 1])
        return self.by_step(text)[1][b]

    def by_step(self, text: TextStates, tapped: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the recurrence token by token, as far as text's positions go. Returns y [B T H W] and the last states [B H K W]."""
        rows, scale = text.positions.shape[1], self.how.scale
        q, k, v, decay, rate = (x[:, :rows] for x in self.operands)
        w, heads = decay.dtype, self.shape[0] // q.shape[2]
        q, k = (x.to(w).repeat_interleave(heads, 2) for x in (q * scale * scale, k * scale))
        v, rate, skip = v.to(w), rate.to(w), None if self.skip is None else self.skip.to(w)
        if text.padded:  # padding leaves a state as it is
            real = text.positions >= 0
            decay, rate = (torch.where(real[(..., *[None] * (x.ndim - 2))], x, kept) for x, kept in ((decay, 1.0), (rate, 0.0)))
        state = text.first(self.shape, w) if self.first is None else self.first
        if decay.is_meta and not tapped:  # what autograd keeps of all tokens at once: a loop over a context of 262,144 has no end
            of_each = state.expand(rows, *state.shape).requires_grad_()
            state, _ = self.how.rewrite(of_each, *(x.transpose(0, 1) for x in (k, v, decay, rate)))
            return self.query(state.transpose(0, 1), q, v, skip).contiguous(), state[-1]
        states, wrote, y = [state], [], []
        for t in range(rows):
            state, row = self.how.rewrite(state, k[:, t], v[:, t], decay[:, t], rate[:, t])
            wrote.append(row)
            states += [state] if tapped else []
            y += [] if tapped else [self.query(state, q[:, t], v[:, t], skip)]
            text.keep(t, state)
        if not tapped:
            return torch.stack(y, 1), state

        def terms(i: Index) -> Terms:
            b, t, h, key, value = i
            fade = decay[b, t, h, key, value] if self.how.by_channel else decay[b, t, h]
            before = Terms(decay=fade, before=states[t][b, h, key, value])
            return before.plus(write=k[b, t, h, key].double() * wrote[t][b, h, value].double())

        return self.query(self.tap_states(torch.stack(states[1:], 1), terms), q, v, skip), state

    def query(self, state: Tensor, q: Tensor, v: Tensor, skip: Tensor | None) -> Tensor:
        """Read queries q [... H K] from states [... H K W], add skip · v, and round once. Returns [... H W]."""
        y = torch.einsum("...hkw,...hk->...hw", state, q)
        return (y if skip is None else y + self.how.skipped(skip, v)).to(self.operands.v.dtype)

    def tap_states(self, table: Tensor, terms: Callable[[Index], Terms] | None = None) -> Tensor:
        """Note and tap the states after each token [B T H K W]."""
        return tap(note(table, self.how.state.name, self.named, (), terms, settings=lambda: {"scale": self.how.scale}), "state: B T H K W")
