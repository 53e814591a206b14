"""One request's decoding: the ordinary forward over pages, and after its first step a replayed plan of it (plans.py)."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pellucid.engine.plans import Plans
from pellucid.errors import UseError
from pellucid.models import Decoder
from pellucid.ops import native
from pellucid.past import Pages
from pellucid.sight import prefix
from pellucid.step import Step


class Decode:
    """A model's place for one request of up to `capacity` tokens. It may serve one request after another, and keeps its plan.

    size: rows a page.  planned: False never records.
    """

    def __init__(self, model: Decoder, capacity: int, size: int = 64, planned: bool = True) -> None:
        self.model = model
        self.capacity = min(capacity, model.config.positions or capacity)
        self.pages = Pages(-(-self.capacity // size), size)
        self.plans = Plans(model, self.pages, planned)
        self.logits, self.best = torch.empty(0), torch.empty(0)

    @property
    def length(self) -> int:
        """Tokens stored so far."""
        return self.pages.length.get(0, 0)

    @property
    def plan(self) -> native.Plan | None:
        """The step that is replayed, once recorded."""
        return self.plans.places[1].plan if 1 in self.plans.places else None

    @property
    def refused(self) -> str | None:
        """Why the model's step is no plan."""
        return self.plans.places[1].refused if 1 in self.plans.places else None

    def start(self, ids: Sequence[int]) -> Tensor:
        """Forget the last request and read this prompt; logits [V] of what follows it."""
        self.check(ids, len(ids))
        self.pages.release(0)
        self.pages.reserve(0, len(ids))
        self.pages.budget[0] = self.capacity
        step = Step.paged(self.pages, {0: len(ids)})
        step.sight = prefix(len(ids)) if self.model.config.prefix else None
        step.wanted = torch.tensor([len(ids) - 1])
        with torch.no_grad():
            self.logits = self.model(torch.tensor([list(ids)]), step)[0]
            self.best = self.logits.argmax(-1)
        step.advance()
        return self.logits[-1]

    def step(self, token: int) -> Tensor:
        """Store one more token; logits [V] of what follows it, valid until the next step."""
        self.check([token], self.length + 1)
        self.logits, self.best = self.plans.step({0: token}), self.plans.best
        return self.logits[-1]

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

    def check(self, ids: Sequence[int], length: int) -> None:
        """Refuse ids that the vocabulary does not hold, a prompt of nothing, and a text longer than the capacity."""
        vocab = self.model.config.vocab
        if wrong := [i for i in ids if not 0 <= i < vocab]:
            raise UseError("decode.id", id=wrong[0], last=vocab - 1)
        if not 0 < length <= self.capacity:
            raise UseError("decode.length", length=length, capacity=self.capacity)
