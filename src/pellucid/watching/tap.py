"""Name a tensor where it is made, and say what its axes are.

    q = tap(self.q(x).unflatten(-1, (-1, s.width)), "q: B T H K")

Idle, tap returns its first argument. Under `watch(model)` the same line checks the axes, records the tensor, and lets the watcher
replace it. `note` is its twin inside ops: which op made a tensor, from what, and the summands of each of its cells.
Reading never changes which kernel runs: values inside a fused op are recomputed after it; only an edit inside selects the reference.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from pellucid.errors import nearest
from pellucid.watching.terms import Index, Terms

if TYPE_CHECKING:
    from pellucid.batch.step import Step
    from pellucid.watching.change import Change
    from pellucid.watching.pulls import Reading
    from pellucid.watching.records import Seen
    from pellucid.watching.watch import Watch

Flops = int | Callable[[], int]  # of an op's products, a multiplication with its addition as two; counted on demand
Settings = Mapping[str, Any]  # numbers and texts by name, as in JSON: a scale, an eps, a mask's conditions


@dataclass(frozen=True, slots=True)
class Made:
    """The origin of a tensor: the op, the paths of its operands and weights, and the op's settings."""

    op: str
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)


@dataclass(slots=True)
class Mark:
    """A watch's record of a storage, shared by its views: how it was made, and the path of the tap at each offset.

    flops: of the op that made it; 0 once the first record has taken them.  reading: of the op's weights, if the watch keeps it; likewise.
    """

    made: Made = Made("tap")
    flops: int = 0
    reading: "Reading | None" = None
    names: dict[int, str] = field(default_factory=dict)


def copied(x: Tensor) -> Tensor:
    """Return a copy of x of which a part is to change. Its marks say how x was made, for the other rows."""
    return marked(x.clone(), x)


def marked(y: Tensor, x: Tensor) -> Tensor:
    """Return y with marks that say how x was made."""
    marks: dict[int, Mark] = x.untyped_storage().__dict__.get("pellucid", {})
    if marks:
        y.untyped_storage().__dict__["pellucid"] = {serial: Mark(m.made, m.flops) for serial, m in marks.items()}
    return y


class Weights:
    """The paths of parameters by their place in a storage, so that a view of one is found too."""

    def __init__(self, where: Mapping[nn.Module, list[str]]) -> None:
        self.paths: dict[Tensor, str] = {}
        for m, (path, *_) in where.items():
            for name, p in (*m.named_parameters("", False), *m.named_buffers("", False)):
                self.paths.setdefault(p, f"{path}.{name}".lstrip("."))

    @cached_property
    def spots(self) -> dict[int, list[tuple[int, int, str]]]:
        spots: dict[int, list[tuple[int, int, str]]] = {}
        for p, path in self.paths.items():
            start = int(p.storage_offset())
            spots.setdefault(p.untyped_storage()._cdata, []).append((start, start + max(p.numel(), 1), path))
        for spans in spots.values():
            spans.sort()
        return spots

    def name(self, w: Tensor) -> str | None:
        if (path := self.paths.get(w)) is not None:
            return path
        if not (spots := self.spots.get(w.untyped_storage()._cdata)):
            return None
        start, stop, path = spots[bisect_right(spots, (w.storage_offset(), float("inf"), "")) - 1]
        return path if start <= w.storage_offset() < stop else None

    def names(self, w: Tensor) -> tuple[str, ...]:
        """Return the path as a tuple; empty for a matrix made of several weights, whose names are on its mark."""
        return () if (name := self.name(w)) is None else (name,)


class Owner(Protocol):
    """The owner of some rows, as a watch sees it: a batch.kv_cache.Segment, or a request alone."""

    @property
    def request(self) -> object: ...


@dataclass(slots=True)
class Spot:
    """A tap of one part, as one watch knows it: made when it first runs."""

    path: str
    dims: str
    letters: list[str]
    wanted: bool
    changes: "tuple[Change, ...]"  # of the watch, that act on it


@dataclass(slots=True)
class Call:
    """A running part: its path in each watched model, the sizes of its axes, and its Steps, or its caller's if it has none."""

    module: nn.Module
    path: "dict[Watch, str | None]"
    sizes: MutableMapping[str, int]
    steps: "tuple[Step, ...]" = ()


class Recomputed(NamedTuple):
    """A record of a recomputed value. x: the tensor, if its watch wants gradients.  part: the index of the record in it, () for all."""

    seen: "Seen"
    x: Tensor | None
    part: tuple[Any, ...]


@dataclass
class ThreadState(threading.local):
    """The state of one thread. Another thread that runs the same model has empty tuples, and records nothing.

    torch.compile reads `calls` at compile time, finds it empty, and leaves no trace of a tap in the graph.
    """

    watches: "tuple[Watch, ...]" = ()
    calls: tuple[Call, ...] = ()
    segment: Owner | None = None
    recomputed: "list[Recomputed] | None" = None  # of the op that is recomputed now; None: values are the forward's own
    source: str = "executed"
    reference: "DeferredReference | None" = None
    terms: dict[int, tuple[Tensor, Callable[[Index], Terms]]] = field(default_factory=dict)


here = ThreadState()


def tap(x: Tensor, label: str, rows: Tensor | None = None) -> Tensor:
    """Return x, or a watch's replacement. label: "name: axes".  rows: for an axis N, the token row of each; None: those that are wanted."""
    if not here.calls:
        return x
    if rows is None and " N " in label and len(steps := here.calls[-1].steps) == 1:
        rows = steps[0].wanted_rows()
    editors: tuple[Watch, ...] = ()
    for w in here.watches:  # all edits before the first record, so that every watch records the tensor that the forward uses
        if w.changes and (new := w.alter(x, label, rows)) is not x:
            x, editors = new, (*editors, w)
    for w in here.watches:
        x = w.see(x, label, rows, any(None in (e.request, w.request) or e.request == w.request for e in editors))
    return x


@lru_cache(64)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that is True for a path which matches any of the patterns. Its answers are cached for later watches."""
    fits = re.compile("|".join(map(translate, patterns)) or r"(?!)")
    return cache(lambda path: fits.match(path) is not None)


# The names that the stream into the first block has in one family or another.
ENTRANCES = {"embed", "embed_norm", "positions", "scaled", "start", "tasked", "typed", "widen"}


def offered(path: str, known: Iterable[str], aliases: Mapping[str, tuple[str, ...]]) -> str:
    """Return the paths to suggest for an unknown one: the nearest, or this model's name of the stream into the first block."""
    enters = aliases.get("layers.0.in", ()) if path in ENTRANCES else ()
    return ", ".join(("layers.0.in", *enters)) if enters else nearest(path, [*known, *aliases])


def described(x: Tensor) -> tuple[tuple[int, ...], str, str]:
    """Return the shape, dtype and device of x, which an edit must keep, as text."""
    return tuple(x.shape), str(x.dtype).removeprefix("torch."), str(x.device)


def note(
    x: Tensor,
    op: str,
    inputs: tuple[Tensor, ...],
    weights: tuple[Tensor | None, ...] = (),
    terms: Callable[[Index], Terms] | None = None,
    flops: Flops = 0,
    settings: Callable[[], Settings] = dict,
    again: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Remember how an op made x, while a watch is on. Returns x.

    terms(index): the summands of one cell.  flops: a multiplication with its addition counts as 2.  settings(): numbers of the op.
    again(*weights): x once more, of other weights, for the gradients of a weight's cells.
    """
    if not here.calls:
        return x
    storage, keep = x.untyped_storage(), False
    for w in here.watches:
        w.made(x, op, inputs, weights, flops, settings, again)
        keep |= w.terms
    if keep and terms is not None and x.device.type != "meta":
        here.terms[storage._cdata] = (x, terms)
    return x


def terms_of(x: Tensor) -> Callable[[Index], Terms] | None:
    """Return the function from an index of x to its terms, by the op that made x or its storage. None if no op gave any."""
    base, terms = here.terms.get(x.untyped_storage()._cdata, (None, None))
    if base is None or terms is None:
        return None
    offset, strides = x.storage_offset() - base.storage_offset(), x.stride()
    shape, steps = tuple(base.shape), base.stride()

    def at(index: Index) -> Terms:
        rest = int(offset) + sum(i * s for i, s in zip(index, strides, strict=True))
        spot = [0] * len(shape)
        for d in sorted((d for d in range(len(shape)) if shape[d] > 1), key=lambda d: -steps[d]):
            spot[d], rest = divmod(rest, steps[d])
        return terms(tuple(spot))

    return at


def indexed_terms(terms: Callable[[Index], Terms] | None, part: tuple[Any, ...]) -> Callable[[Index], Terms] | None:
    """Return terms for an indexed copy `x[part]`. Indexing breaks the storage link, so map its rows back to `x`'s."""
    if terms is None or not part:
        return None
    axis, rows, of_x = len(part) - 1, part[-1], terms
    return lambda i: of_x((*i[:axis], int(rows[i[axis]]), *i[axis + 1 :]))


def inside(*names: str) -> str | None:
    """Return the most that any watch wants of tensors inside the running op.

    None: nothing.  "listed": shapes.  "beside": values, recomputed after the kernel.  "reference": the reference in the kernel's place.
    """
    if not here.calls:
        return None
    return max((w.inside_of(names) for w in here.watches), key=[None, "listed", "beside", "reference"].index)


def visit_segments(segments: Sequence[Owner], names: tuple[str, ...], show: Callable[[str, Any], None]) -> None:
    """Call `show(mode, segment)` for each request whose watch wants any of `names`. A batched kernel has run."""
    if not here.calls:
        return

    def show_each() -> None:
        for segment in segments:
            with in_segment(segment):
                if (mode := inside(*names)) is not None:
                    show(mode, segment)

    for w in here.watches:
        w.remember(names, show_each)
    if inside(*names) is not None:
        show_each()


def unwatched(f: Callable[[Any], Any], x: Any) -> Any:
    """Return f(x) with recording off: models that a user's function runs are not recorded."""
    calls, watches, here.calls, here.watches = here.calls, here.watches, (), ()
    try:
        return f(x)
    finally:
        here.calls, here.watches = calls, watches


@contextmanager
def seen_by(*watches: "Watch | Catch", calls: tuple[Call, ...] = ()) -> Iterator[None]:
    """Let only these watches record within the block, as if these parts were running; its terms are separate."""
    outer = here.watches, here.calls, here.terms
    here.watches, here.calls, here.terms = watches, calls, {}  # type: ignore[assignment]
    try:
        yield
    finally:
        here.watches, here.calls, here.terms = outer


@dataclass
class Catch:
    """A stand-in for a watch while a deferred reference runs: keeps one of its tensors, cut like its record, with its terms."""

    name: str
    part: tuple[Any, ...]
    caught: tuple[Tensor, Callable[[Index], Terms] | None] | None = None
    terms, changes, request = True, (), None

    def made(self, *args: Any) -> None:
        """Do nothing: the deferred record has the path and the op."""

    def inside_of(self, names: tuple[str, ...]) -> None:
        """Want nothing inside another op."""

    def remember(self, *args: Any) -> None:
        """Do nothing: the tensor is tapped while the reference runs."""

    def see(self, x: Tensor, label: str, rows: Tensor | None, edited: bool) -> Tensor:
        if label.split(": ")[0] == self.name:
            cut = x[self.part] if self.part else x
            self.caught = cut, terms_of(cut) or indexed_terms(terms_of(x), self.part)
        return x


@dataclass(frozen=True)
class DeferredReference:
    """An op's reference that has not run yet. run(): runs it, and returns the largest difference from the kernel's output."""

    run: Callable[[], float | None]
    call: Call

    def record(self, seen: "Seen", part: tuple[Any, ...]) -> "Seen":
        """Complete a deferred record: run the reference for its value, terms and error. part: the request's part of it, () for all."""
        catch = Catch(seen.path.rpartition(".")[2], part)
        with torch.no_grad(), seen_by(catch, calls=(self.call,)):
            error = self.run()
        assert catch.caught is not None
        value, terms = catch.caught
        return replace(seen, value=value, terms=terms, error=error, later=None)


@contextmanager
def deferred(run: Callable[[], float | None], executed: bool = False) -> Iterator[None]:
    """Record taps within the block, on meta, as shapes alone. `run` computes their values when a record's `later` is called.

    executed: it is the kernel that computes them, not a reference beside it.
    """
    outer, here.reference = (here.reference, here.recomputed), DeferredReference(run, here.calls[-1])
    here.recomputed = None if executed else []
    try:
        with torch.no_grad():
            yield
    finally:
        here.reference, here.recomputed = outer


@contextmanager
def as_reference() -> Iterator[None]:
    """Mark taps within the block as the reference's, which runs in the kernel's place because a watch wants it."""
    outer, here.source = here.source, "reference"
    try:
        yield
    finally:
        here.source = outer


@contextmanager
def in_segment(segment: Owner) -> Iterator[None]:
    """Let taps within the block belong to one segment, whose sizes of T and S are its own."""
    if not here.calls:
        yield
        return
    outer, sizes = here.segment, here.calls[-1].sizes
    here.segment, kept = segment, dict(sizes)
    for letter in "TS":
        sizes.pop(letter, None)
    try:
        yield
    finally:
        here.segment = outer
        sizes.clear()
        sizes.update(kept)


@dataclass(frozen=True, slots=True)
class RequestOwner:
    """An Owner that is a request alone."""

    request: object


@contextmanager
def after(model: nn.Module, path: str, request: object) -> Iterator[None]:
    """Record taps within the block under `path`: work on one request's rows after the forward, such as sampling."""
    if not any(w.request is None or w.request == request for w in here.watches):
        yield
        return
    calls, terms, segment = here.calls, here.terms, here.segment
    paths: dict[Watch, str | None] = {w: f"{known[0]}.{path}".lstrip(".") if (known := w.where.get(model)) else None for w in here.watches}
    here.calls, here.terms, here.segment = (*calls, Call(model, paths, {})), {}, RequestOwner(request)
    try:
        yield
    finally:
        here.calls, here.terms, here.segment = calls, terms, segment
