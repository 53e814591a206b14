"""One request's decoding: the ordinary forward over pages, and after its first step a replayed plan of it.

The plan is only ever a recording of the forward, so both give the same bits. A model that does something no kernel does, a watched
step, or a machine without kernels runs the forward itself.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.models import Decoder
from pellucid.ops import native
from pellucid.ops.blocks import Blocks
from pellucid.past import Pages, Past, Span, Stored
from pellucid.sight import prefix
from pellucid.step import Step
from pellucid.tap import here


class Row(Step):
    """The step of one new row, whose position and page table a plan may point to."""

    def _append(self, pages: Pages, pools: Stored, new: Stored) -> Past:
        (span,) = self.spans
        table = pages.tables[span.request]
        if not all(native.fits_store(n, pool, table, self.positions) for pool, n in zip(pools, new, strict=True)):
            return super()._append(pages, pools, new)
        for pool, n in zip(pools, new, strict=True):
            native.store(n, pool, table, self.positions, pages.size)
        return Past([self._page(pages, pools, span)], new)


class Decode:
    """A model's place for one request of up to `capacity` tokens. It may serve one request after another, and keeps its plan.

    size: rows a page.  planned: False never records.
    """

    def __init__(self, model: Decoder, capacity: int, size: int = 64, planned: bool = True) -> None:
        self.model, self.planned = model, planned
        self.capacity = min(capacity, model.config.positions or capacity)
        self.pages = Pages(-(-self.capacity // size), size)
        self.token, self.position = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
        self.plan: native.Plan | None = None
        self.refused: str | None = None  # why the model's step is no plan
        self.weights: list[Tensor] = []
        self.made_of: tuple[int, ...] = ()
        self.logits, self.best = torch.empty(0), torch.empty(0)

    @property
    def length(self) -> int:
        """Tokens stored so far."""
        return self.pages.length.get(0, 0)

    def start(self, ids: Sequence[int]) -> Tensor:
        """Forget the last request and read this prompt; logits [V] of what follows it."""
        self.check(ids, len(ids))
        self.renew()
        self.pages.length[0], self.pages.budget[0] = 0, self.capacity
        self.pages.reserve(0, len(ids))
        step = Step.paged(self.pages, {0: len(ids)})
        step.sight = prefix(len(ids)) if self.model.config.prefix else None
        step.wanted = torch.tensor([len(ids) - 1])
        with torch.no_grad():
            self.logits = self.model(torch.tensor([list(ids)]), step)
            self.best = self.logits.argmax(-1)
        step.advance()
        return self.logits[0, -1]

    def step(self, token: int) -> Tensor:
        """Store one more token; logits [V] of what follows it, valid until the next step."""
        at = self.length
        self.check([token], at + 1)
        if self.place(self.weights) != self.made_of:
            self.renew()
        self.pages.reserve(0, at + 1)
        self.token[0, 0], self.position[0, 0] = token, at
        if here.watches or not (self.planned and native.available()) or self.refused:
            self.forward()
        elif self.plan is not None:
            self.plan.replay()
            self.logits, self.best = self.outputs
        else:
            self.record()
        self.pages.length[0] = at + 1
        return self.logits[0, -1]

    def forward(self) -> None:
        """The model's own step."""
        with torch.no_grad():
            self.logits = self.model(self.token, Row(self.position, (Span(0, 0, 1, self.length),), self.pages))
            self.best = native.argmax(self.logits) if native.fits_argmax(self.logits) else self.logits.argmax(-1)

    def record(self) -> None:
        """The model's own step, heard; where it does what no plan can hold, the step without a listener."""
        try:
            with native.record() as recording:
                self.forward()
        except native.Unplannable as error:
            self.refused = str(error)
            self.forward()
        else:
            self.plan, self.outputs = recording.plan(), (self.logits, self.best)

    def greedy(self, ids: Sequence[int], new: int, stops: Iterable[int] = ()) -> list[int]:
        """Up to `new` tokens after the prompt, each the likeliest; a stop ends them and is the last."""
        ends, out = set(stops), list[int]()
        if new:
            self.start(ids)
        while len(out) < new:
            if out:
                self.step(out[-1])
            out.append(int(self.best))
            if out[-1] in ends:
                break
        return out

    def renew(self) -> None:
        """Drop the plan if the model is no longer what it was recorded from. Hooks are Python, which no plan can hold."""
        weights = [*self.model.parameters(), *self.model.buffers()]
        made_of = self.place(weights)
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in self.model.modules())
        if made_of != self.made_of or hooked:
            self.plan, self.refused = None, "hooks" if hooked else None
        elif self.refused == "hooks":
            self.refused = None
        self.weights, self.made_of = weights, made_of

    def place(self, weights: Iterable[Tensor]) -> tuple[int, ...]:
        """The model's edition, and where these lie: a plan points there."""
        return self.model.edition, *addresses(weights)

    def check(self, ids: Sequence[int], length: int) -> None:
        """Refuse ids that the vocabulary does not hold, a prompt of nothing, and a text longer than the capacity."""
        vocab = self.model.config.vocab
        if wrong := [i for i in ids if not 0 <= i < vocab]:
            raise UseError("decode.id", id=wrong[0], last=vocab - 1)
        if not 0 < length <= self.capacity:
            raise UseError("decode.length", length=length, capacity=self.capacity)


def addresses(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Where they lie."""
    return tuple((t.codes if isinstance(t, Blocks) else t).data_ptr() for t in tensors)
