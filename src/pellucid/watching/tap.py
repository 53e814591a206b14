"""Name a tensor where it is made, and say what its axes are.

    q = tap(self.q(x).unflatten(-1, (-1, s.width)), "q: B T H K")

Idle, tap returns its first argument. Under `watch(model)` the same line checks the axes, records the tensor, and lets the watcher
replace it. `note` is its twin on the side of the ops: what made a tensor, from what, and the summands of each of its cells.
Reading never changes which kernel runs: what lies inside a fused op is recomputed beside it; only an edit inside selects the reference.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from pellucid.errors import nearest
from pellucid.watching.terms import Index, Terms

if TYPE_CHECKING:
    from pellucid.batch.step import Step
    from pellucid.watching.watch import Seen, Watch

Flops = int | Callable[[], int]  # products of an op, each multiplication with its addition two; counted when somebody asks
Settings = Mapping[str, Any]  # numbers, texts and lists of numbers by name, as JSON holds them: a scale, an eps, what a mask allows


@dataclass(frozen=True, slots=True)
class Made:
    """How a tensor came to be: the op, its operands by path, its weights by path, and the numbers that the op was set to."""

    op: str
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)


@dataclass(slots=True)
class Mark:
    """What one watch knows of a storage: how it was made, and the paths of its taps by where they start. A view finds it.

    flops: the products that made it, until the first tap has told them.
    """

    made: Made = Made("tap")
    flops: int = 0
    names: dict[int, str] = field(default_factory=dict)


class Weights:
    """Finds the path of a parameter, or of the parameter that a tensor is a view of, by where it lies in its storage."""

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
        for found in spots.values():
            found.sort()
        return spots

    def name(self, w: Tensor) -> str | None:
        if (path := self.paths.get(w)) is not None:
            return path
        if not (spots := self.spots.get(w.untyped_storage()._cdata)):
            return None
        start, stop, path = spots[bisect_right(spots, (w.storage_offset(), float("inf"), "")) - 1]
        return path if start <= w.storage_offset() < stop else None

    def names(self, w: Tensor) -> tuple[str, ...]:
        """The same as a tuple; empty of a matrix that was put together from several, which its mark tells."""
        return () if (name := self.name(w)) is None else (name,)


class Place(Protocol):
    """What a segment of the cache tells a watcher: whose rows these are (see batch.kv_cache.Segment)."""

    @property
    def request(self) -> object: ...


@dataclass(slots=True)
class Spot:
    """A tap of one part, as one watch knows it: worked out when it is first met."""

    path: str
    dims: str
    letters: list[str]
    wanted: bool
    key: str | None  # of the edit that speaks of it


@dataclass(slots=True)
class Call:
    """One running part: its path for each watch, the sizes that its letters have, and the steps it was called with, or its caller."""

    module: nn.Module
    path: "dict[Watch, str | None]"
    sizes: MutableMapping[str, int]
    steps: "tuple[Step, ...]" = ()


@dataclass
class Here(threading.local):
    """What this thread is doing. Another thread that runs the same model sees empty tuples, and records nothing.

    torch.compile reads `calls` at compile time, finds it empty, and leaves no trace of a tap in the graph.
    """

    watches: "tuple[Watch, ...]" = ()
    calls: tuple[Call, ...] = ()
    segment: Place | None = None
    marks: "list[Seen] | None" = None
    source: str = "executed"
    again: "Again | None" = None
    terms: dict[int, tuple[Tensor, Callable[[Index], Terms]]] = field(default_factory=dict)


here = Here()


def tap(x: Tensor, label: str, rows: Tensor | None = None) -> Tensor:
    """x itself, or what a watcher puts in its place. label: "name: axes". rows: for an axis N, the token row that each came from."""
    if not here.calls:
        return x
    editors: tuple[Watch, ...] = ()
    for w in here.watches:  # all edits come before the first record, so that each watch has what the forward goes on with
        if w.edit and (new := w.alter(x, label, rows)) is not x:
            x, editors = new, (*editors, w)
    for w in here.watches:
        x = w.see(x, label, rows, any(None in (e.request, w.request) or e.request == w.request for e in editors))
    return x


@lru_cache(64)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a path fits one of these; what it has answered it knows, for the next watch that asks the same."""
    fits = re.compile("|".join(map(translate, patterns)) or r"(?!)")
    return cache(lambda path: fits.match(path) is not None)


# What a family calls the stream that enters its first block; another has it under another of these.
ENTRANCES = {"embed", "embed_norm", "positions", "scaled", "start", "typed", "widen"}


def offered(path: str, known: Iterable[str], aliases: Mapping[str, tuple[str, ...]]) -> str:
    """The paths to offer for one that is unknown: the nearest, or for a stream into the first block what that is in this model."""
    enters = aliases.get("layers.0.in", ()) if path in ENTRANCES else ()
    return ", ".join(("layers.0.in", *enters)) if enters else nearest(path, [*known, *aliases])


def described(x: Tensor) -> tuple[tuple[int, ...], str, str]:
    """What an edit must leave as it is."""
    return tuple(x.shape), str(x.dtype).removeprefix("torch."), str(x.device)


def note(
    x: Tensor,
    op: str,
    inputs: tuple[Tensor, ...],
    weights: tuple[Tensor | None, ...] = (),
    terms: Callable[[Index], Terms] | None = None,
    flops: Flops = 0,
    settings: Callable[[], Settings] = dict,
) -> Tensor:
    """Remember, while a watch is on, how an op made x.

    terms(index) are the summands of one cell, flops counts products as 2, settings() are the numbers beside the operands.
    """
    if not here.calls:
        return x
    storage, keep = x.untyped_storage(), False
    for w in here.watches:
        w.made(storage, op, inputs, weights, flops, settings)
        keep |= w.terms
    if keep and terms is not None and x.device.type != "meta":
        here.terms[storage._cdata] = (x, terms)
    return x


def terms_of(x: Tensor) -> Callable[[Index], Terms] | None:
    """terms(index of x), through the op whose output x is, or is a view of; None where no op told."""
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
    """The terms of x[part] by those of x, where the last of part numbers rows of x: a copy, which its storage cannot tell."""
    if terms is None or not part:
        return None
    axis, rows, whole = len(part) - 1, part[-1], terms
    return lambda i: whole((*i[:axis], int(rows[i[axis]]), *i[axis + 1 :]))


def inside(*names: str) -> str | None:
    """What is asked of these tensors of the running op: None, "list" (shapes alone), "read" (run beside), or "reference" (in its place)."""
    if not here.calls:
        return None
    return max((w.inside_of(names) for w in here.watches), key=[None, "list", "read", "reference"].index)


def visit_segments(segments: Sequence[Place], names: tuple[str, ...], show: Callable[[str, Any], None]) -> None:
    """After a kernel that took all segments at once: show(what is asked, segment) for each within which somebody asks for these tensors."""
    if not here.calls:
        return

    def look() -> None:
        for segment in segments:
            with in_segment(segment):
                if (asked := inside(*names)) is not None:
                    show(asked, segment)

    for w in here.watches:
        w.remember(names, look)
    if inside(*names) is not None:
        look()


def unwatched(f: Callable[[Any], Any], x: Any) -> Any:
    """f(x), a watcher's own function: a model that it runs, another or this one, is not recorded."""
    calls, watches, here.calls, here.watches = here.calls, here.watches, (), ()
    try:
        return f(x)
    finally:
        here.calls, here.watches = calls, watches


@contextmanager
def seen_by(*watches: "Watch | Catch", calls: tuple[Call, ...] = ()) -> Iterator[None]:
    """These watch in here and nobody else, under these running parts; terms are their own."""
    outer = here.watches, here.calls, here.terms
    here.watches, here.calls, here.terms = watches, calls, {}  # type: ignore[assignment]
    try:
        yield
    finally:
        here.watches, here.calls, here.terms = outer


@contextmanager
def recomputing() -> Iterator[Callable[[float | None], None]]:
    """Taps in here are recomputed. Call the yielded function with the largest difference from what the kernel gave."""
    marks: list[Seen] = []
    outer, here.marks = here.marks, marks

    def found(error: float | None) -> None:
        for seen in marks:
            seen.error = error

    try:
        with torch.no_grad():
            yield found
    finally:
        here.marks = outer


@dataclass
class Catch:
    """Stands where a watch does while a listed op's reference runs: keeps one of its tensors, cut like its record, with its terms."""

    name: str
    part: tuple[Any, ...]
    found: tuple[Tensor, Callable[[Index], Terms] | None] | None = None
    terms, edit, request = True, None, None

    def made(self, *told: Any) -> None:
        """Its path and its op are known from the listing."""

    def inside_of(self, names: tuple[str, ...]) -> None:
        """Nothing lies deeper."""

    def remember(self, *told: Any) -> None:
        """What it looks for is tapped at once."""

    def see(self, x: Tensor, label: str, rows: Tensor | None, edited: bool) -> Tensor:
        if label.split(": ")[0] == self.name:
            cut = x[self.part] if self.part else x
            self.found = cut, terms_of(cut) or indexed_terms(terms_of(x), self.part)
        return x


@dataclass(frozen=True)
class Again:
    """An op's reference, for whoever asks later what it taps. run: gives the largest difference from what the kernel gave."""

    run: Callable[[], float | None]
    call: Call

    def record(self, seen: "Seen", part: tuple[Any, ...]) -> "Seen":
        """The record of a listed tensor with its value, its terms, and the difference. part: of the op's tensor, () for all."""
        catch = Catch(seen.path.rpartition(".")[2], part)
        with torch.no_grad(), seen_by(catch, calls=(self.call,)):
            error = self.run()
        assert catch.found is not None
        value, told = catch.found
        return replace(seen, value=value, terms=told, error=error, later=None)


@contextmanager
def deferred(run: Callable[[], float | None]) -> Iterator[None]:
    """Taps in here are on meta: they stand for what the reference would tap, which runs when one of them is asked for."""
    outer, here.again, here.marks = (here.again, here.marks), Again(run, here.calls[-1]), []
    try:
        with torch.no_grad():
            yield
    finally:
        here.again, here.marks = outer


@contextmanager
def as_reference() -> Iterator[None]:
    """Taps in here are the reference's, which runs in the kernel's place because a watcher asked for it."""
    outer, here.source = here.source, "reference"
    try:
        yield
    finally:
        here.source = outer


@contextmanager
def in_segment(segment: Place) -> Iterator[None]:
    """Taps in here belong to one segment of the cache: T and S are its own."""
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
class Whose:
    """A Place that tells the request alone."""

    request: object


@contextmanager
def after(model: nn.Module, path: str, request: object) -> Iterator[None]:
    """Taps in here are what is done with one request's rows of the model's last step, once its forward is over: under this path."""
    if not here.watches:
        yield
        return
    calls, terms, segment = here.calls, here.terms, here.segment
    paths: dict[Watch, str | None] = {w: f"{found[0]}.{path}".lstrip(".") if (found := w.where.get(model)) else None for w in here.watches}
    here.calls, here.terms, here.segment = (*calls, Call(model, paths, {})), {}, Whose(request)
    try:
        yield
    finally:
        here.calls, here.terms, here.segment = calls, terms, segment
