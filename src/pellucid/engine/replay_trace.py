"""What a watcher sees of a replayed step: the tensors that the recording tapped, with the numbers that this step has put there.

    recorded, once      layers.3.attn.q [1 16 14 64]  ->  an event: its path, and where it lies
    replayed, watched   row 5 of it, copied           ->  a record, as if the forward had run

Each output of a plan has memory of its own, so after every replay the same tensors hold what the step has made. What lies within an op
is shown by the look that the recording kept, at this step's cache. Nothing of the model runs again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import Span
from pellucid.watching.tap import Call, Flops, Made, Settings, Spot, here, seen_by
from pellucid.watching.watch import Cut, Watch

if TYPE_CHECKING:
    from pellucid.engine.plans import Rows

Cuts = dict[str, list[Cut]]  # what of a tensor is whose, by its axes: see Watch.cuts


@dataclass(frozen=True)
class Tapped:
    """A tensor of the recording. flops: of its op, or what counts them at the cache of a step."""

    call: Call
    spot: Spot
    x: Tensor
    rows: Tensor | None
    made: Made
    flops: Flops

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.spot.path,)

    @property
    def late(self) -> bool:
        """Whether it needs the cache of the step."""
        return callable(self.flops)

    def tell(self, w: Watch, cuts: Cuts) -> None:
        """The watched request's part, copied: the next replay writes over the tensor itself. cuts: those of the step so far, by axes."""
        if self.rows is not None or self.spot.dims not in cuts:
            rows = None if self.rows is None else self.rows.clone()
            cuts[self.spot.dims] = w.cuts(self.x, self.spot.dims, rows)
        found = cuts[self.spot.dims]
        flops = None if len(found) != 1 else self.flops() if callable(self.flops) else self.flops
        for request, part, rows in found:
            w.record(self.spot, self.x, (self.x[part] if part else self.x).clone(), part, rows, self.made, False, flops, request)


@dataclass(frozen=True)
class Within:
    """What shows the inside of an op. paths: of what it taps."""

    call: Call
    paths: tuple[str, ...]
    look: Callable[[], None]
    late = True

    def tell(self, w: Watch, cuts: Cuts) -> None:
        self.look()


class TapRecorder(Watch):
    """Stands where a watch does while a step is recorded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.events: list[Tapped | Within] = []
        self.counts: dict[int, Callable[[], int]] = {}  # by storage; what an attention costs depends on how much it sees

    def inside_of(self, names: tuple[str, ...]) -> None:
        """The kernel runs alone."""

    def remember(self, names: tuple[str, ...], look: Callable[[], None]) -> None:
        if (path := here.calls[-1].path[self]) is not None:
            self.events.append(Within(self.call(), tuple(f"{path}.{n}" for n in names), look))

    @property
    def deep(self) -> Iterator[str]:
        """The paths of what lies within ops."""
        return (path for e in self.events if isinstance(e, Within) for path in e.paths)

    def call(self) -> Call:
        """The running part, with the sizes that it has by now."""
        return replace(here.calls[-1], sizes=dict(here.calls[-1].sizes))

    def made(
        self, storage: torch.UntypedStorage, op: str, inputs: tuple[Tensor, ...], weights: tuple[Tensor | None, ...], flops: Flops,
        settings: Callable[[], Settings],
    ) -> None:  # fmt: skip
        super().made(storage, op, inputs, weights, flops if isinstance(flops, int) else 0, settings)
        if not isinstance(flops, int):
            self.counts[storage._cdata] = flops

    def cuts(self, x: Tensor, dims: str, rows: Tensor | None) -> list[Cut]:
        """Every request's: whose rows they are is asked when a step is told."""
        return [(None, (), rows)]

    def record(
        self, spot: Spot, x: Tensor, cut: Tensor, part: tuple[Any, ...], rows: Tensor | None, made: Made, edited: bool,
        flops: int | None, request: object = None,
    ) -> None:  # fmt: skip
        self.events.append(Tapped(self.call(), spot, x, rows, made, self.counts.pop(x.untyped_storage()._cdata, flops or 0)))

    def serves(self, w: Watch) -> bool:
        """Whether all that a watch asks for can be told afterwards: no edit, no gradient, no terms, nothing that is looked at later."""
        if w.model is not self.model or w.edit or w.grad or w.terms:
            return False
        return w.inside == "beside" or not any(map(w.wants, self.deep))

    def tell(self, w: Watch, step: "Rows", spans: tuple[Span, ...], logits: Tensor, tokens: Tensor) -> None:
        """The step of these spans that was replayed just now for these tokens, as this watch would have seen it."""
        cuts: Cuts = {}
        events = [e for e in self.events if any(map(w.wants, e.paths))]
        if any(e.late for e in events):
            step.now(spans)
        else:
            step.spans = spans
        own, w.serial = w.serial, self.serial  # operands are known by the marks of the recording
        w.step, w.count, w.given = w.step + 1, {}, ((tokens,), (step,))
        w.met |= w.request is None or any(s.request == w.request for s in spans)
        try:
            with seen_by(w):
                for e in events:
                    here.calls = (Call(e.call.module, {w: e.call.path[self]}, dict(e.call.sizes), (step,)),)
                    e.tell(w, cuts)
        finally:
            w.serial = own
        marks = logits.untyped_storage().__dict__["pellucid"]  # for what is sampled from them
        for serial in set(marks) - {self.serial, *(other.serial for other in here.watches)}:
            del marks[serial]
        w.mark(logits.untyped_storage()).names |= marks[self.serial].names
