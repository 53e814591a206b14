"""Watching a replayed step: the tensors that were tapped while the plan was recorded, with the values that this replay wrote there.

    recorded, once      layers.3.attn.q [1 16 14 64]  ->  an event: its path, and where it lies
    replayed, watched   row 5 of it, copied           ->  a record, as if the forward had run

Each output of a plan has its own memory, so after every replay the same tensors hold the step's values. The inside of an op is
recomputed from this step's kv_cache, by the function that the op gave the recorder. Nothing of the model runs again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from pellucid.batch.kv_cache import Span
from pellucid.watching.pulls import Pulls
from pellucid.watching.tap import Call, Flops, Made, Settings, Spot, here, seen_by
from pellucid.watching.watch import Cut, Watch

if TYPE_CHECKING:
    from pellucid.engine.plans import DecodeStep

Cuts = dict[str, list[Cut]]  # the requests' parts of a tensor, by its axes: see Watch.cuts


@dataclass(frozen=True)
class TapEvent:
    """A tapped tensor of the recording. flops: of its op, or a function that counts them for the step's kv_cache."""

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
    def needs_past(self) -> bool:
        """True if it reads the kv_cache of the step."""
        return callable(self.flops)

    def emit(self, w: Watch, cuts: Cuts) -> None:
        """Record a copy of the watched request's part, since the next replay overwrites it. cuts: those of the step so far."""
        if self.rows is not None or self.spot.dims not in cuts:
            rows = None if self.rows is None else self.rows.clone()
            cuts[self.spot.dims] = w.cuts(self.x, self.spot.dims, rows)
        parts = cuts[self.spot.dims]
        flops = None if len(parts) != 1 else self.flops() if callable(self.flops) else self.flops
        for request, part, rows in parts:
            w.record(self.spot, self.x, (self.x[part] if part else self.x).clone(), part, rows, self.made, False, flops, request)


@dataclass(frozen=True)
class InsideOp:
    """The inside of an op. show: recomputes it and taps it under `paths`."""

    call: Call
    paths: tuple[str, ...]
    show: Callable[[], None]
    needs_past = True

    def emit(self, w: Watch, cuts: Cuts) -> None:
        self.show()


class TapRecorder(Watch):
    """A watch of a plan's recording, which keeps events and emits them to a real watch after each replay."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.events: list[TapEvent | InsideOp] = []
        self.counts: dict[int, Callable[[], int]] = {}  # by storage; an attention's FLOPs depend on the length of its kv_cache

    def inside_of(self, names: tuple[str, ...]) -> None:
        """Return None, so that the kernel runs without its reference."""

    def remember(self, names: tuple[str, ...], show: Callable[[], None]) -> None:
        if (path := here.calls[-1].path[self]) is not None:
            self.events.append(InsideOp(self.call(), tuple(f"{path}.{n}" for n in names), show))

    @property
    def inner_paths(self) -> Iterator[str]:
        """Yield the paths of tensors inside ops."""
        return (path for e in self.events if isinstance(e, InsideOp) for path in e.paths)

    def call(self) -> Call:
        """Return the running module's call, with a copy of its sizes."""
        return replace(here.calls[-1], sizes=dict(here.calls[-1].sizes))

    def made(
        self, x: Tensor, op: str, inputs: tuple[Tensor, ...], weights: tuple[Tensor | None, ...], flops: Flops,
        settings: Callable[[], Settings], again: Callable[..., Tensor] | None,
    ) -> None:  # fmt: skip
        super().made(x, op, inputs, weights, flops if isinstance(flops, int) else 0, settings, None)
        if not isinstance(flops, int):
            self.counts[x.untyped_storage()._cdata] = flops

    def cuts(self, x: Tensor, dims: str, rows: Tensor | None) -> list[Cut]:
        """Return one cut for all requests; a request's rows are known only when a step is emitted."""
        return [(None, (), rows)]

    def record(
        self, spot: Spot, x: Tensor, cut: Tensor, part: tuple[Any, ...], rows: Tensor | None, made: Made, edited: bool,
        flops: int | None, request: object = None, pulls: Pulls | None = None,
    ) -> None:  # fmt: skip
        self.events.append(TapEvent(self.call(), spot, x, rows, made, self.counts.pop(x.untyped_storage()._cdata, flops or 0)))

    def can_emit_to(self, w: Watch) -> bool:
        """True if a replay can serve this watch: no edit, no gradient, no terms, no inside of an op but beside its kernel."""
        if w.model is not self.model or w.changes or w.grad or w.terms:
            return False
        return w.inside == "beside" or not any(map(w.wants, self.inner_paths))

    def emit(self, w: Watch, step: "DecodeStep", spans: tuple[Span, ...], logits: Tensor, tokens: Tensor) -> None:
        """Emit the step just replayed for these spans and tokens to a watch, with the records of a forward."""
        cuts: Cuts = {}
        events = [e for e in self.events if any(map(w.wants, e.paths))]
        if any(e.needs_past for e in events):
            step.set_spans(spans)
        else:
            step.spans = spans
        own, w.serial = w.serial, self.serial  # operands are known by the marks of the recording
        w.step, w.count, w.given = w.step + 1, {}, ((tokens,), (step,))
        w.any_seen |= w.request is None or any(s.request == w.request for s in spans)
        try:
            with seen_by(w):
                for e in events:
                    here.calls = (Call(e.call.module, {w: e.call.path[self]}, dict(e.call.sizes), (step,)),)
                    e.emit(w, cuts)
        finally:
            w.serial = own
        marks = logits.untyped_storage().__dict__["pellucid"]  # for the records of sampling
        for serial in set(marks) - {self.serial, *(other.serial for other in here.watches)}:
            del marks[serial]
        w.mark(logits.untyped_storage()).names |= marks[self.serial].names
