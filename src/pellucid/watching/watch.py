"""Record, and change, what `tap` names while this thread runs a model.

While any thread watches, every module's forward is wrapped; the wrap leaves by `finally`. Nothing else of the model changes.
"""

import fnmatch
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pellucid.axes import bind
from pellucid.batch.step import Step, part_of, spans_of
from pellucid.errors import TraceError, UseError
from pellucid.watching.cells import Place
from pellucid.watching.change import Change, Function, PartChange, as_changes
from pellucid.watching.eager import EAGER
from pellucid.watching.forward_values import ENTERS, ForwardValues
from pellucid.watching.pulls import Pulls, Reading, layout
from pellucid.watching.records import Records, Seen, bounded_terms
from pellucid.watching.tap import (
    Flops,
    Made,
    Mark,
    Recomputed,
    Settings,
    Spot,
    Weights,
    copied,
    here,
    indexed_terms,
    matcher,
    offered,
    terms_of,
    unwatched,
)
from pellucid.watching.wrap import wrap_forwards

Edit = Mapping[str, Function | nn.Module] | Iterable[Change] | Change
Inside = Literal["beside", "listed", "reference"]
Part = tuple[Any, ...]  # the index of a request's part of a tensor, () for all of it
Cut = tuple[object, Part, Tensor | None]  # a request, its part, and the rows of that
_serial = itertools.count()


class Watch(Records):
    """One watch of one model, active inside `with watch(...)`. `pellucid.watch` explains the settings.

    inside: of values in a fused op: "beside" recomputes them after the kernel, "listed" records shapes and computes values in `Seen.later`,
    "reference" runs the reference in the kernel's place.  to: is called with each record, which is then not kept here.
    """

    def __init__(
        self,
        model: nn.Module,
        only: str | Iterable[str] = "*",
        keep: Callable[[Tensor], Any] | None = None,
        edit: Edit | None = None,
        grad: bool = False,
        request: object = None,
        inside: str = "beside",
        terms: bool = False,
        to: Callable[[Seen], None] | None = None,
    ) -> None:
        super().__init__()
        if inside not in get_args(Inside):
            raise UseError("watch.inside", found=repr(inside))
        self.only = (only,) if isinstance(only, str) else tuple(only)
        self.model, self.wants = model, matcher(self.only)
        self.keep, self.changes, self.grad, self.request, self.inside, self.terms = keep, as_changes(edit), grad, request, inside, terms
        self.to = self.seen.append if to is None else functools.partial(unwatched, to)
        self.serial = next(_serial)  # not id(self): a tensor outlives its watch, and ids come again
        self.step, self.any_seen = -1, False
        self.count: dict[tuple[str, object], int] = {}
        self.met: set[Change] = set()
        self.acted: set[Change] = set()
        self.recorded: set[str] = set()
        self.inner: dict[str, None] = {}  # paths inside ops, which are recorded only if they are wanted
        self.given: tuple[tuple[Tensor, ...], tuple[Step, ...]] = (), ()  # the arguments of the running forward: ids and steps
        self.spots: dict[tuple[str, str], Spot] = {}
        self.patterns, self.by_path = {c.path for c in self.changes}, dict[str, tuple[Change, ...]]()
        self.values = ForwardValues(c.reads for c in self.changes)
        self.enters = any(path.endswith(ENTERS) for c in self.changes for path in (c.path, c.reads))
        self.flops: dict[str, int] = {}
        self.where: dict[nn.Module, list[str]] = {}
        for path, m in model.named_modules(remove_duplicate=False):  # a shared module keeps every path
            self.where.setdefault(m, []).append(path)
        self.weights = Weights(self.where)

    def take_in(self, part: nn.Module, path: str) -> None:
        """Make a module part of the watched model under `path`, until the watch ends."""
        if path in self.where.get(part, ()):
            return
        for name, m in part.named_modules():
            if m not in self.where:
                wrap_forwards([m], +1)
            self.where.setdefault(m, []).append(f"{path}.{name}".rstrip("."))
        self.weights = Weights(self.where)

    def changes_of(self, path: str) -> tuple[Change, ...]:
        """Return the changes of this path, in the order in which they act."""
        if path not in self.by_path:
            hits = {pattern for pattern in self.patterns if fnmatch.fnmatchcase(path, pattern)}
            self.by_path[path] = tuple(c for c in self.changes if c.path in hits)
        return self.by_path[path]

    def inside_of(self, names: tuple[str, ...]) -> str | None:
        """Return how this watch wants these tensors inside the running op, see `tap.inside`. None if it does not."""
        path = here.calls[-1].path.get(self)
        if path is None or (self.request is not None and here.segment is not None and here.segment.request not in (None, self.request)):
            return None
        full = [f"{path}.{n}".lstrip(".") for n in names]
        wanted = any(map(self.wants, full))
        self.inner.update(dict.fromkeys(full))
        if any(self.changes_of(p) or self.values.wants(p) for p in full) or (wanted and self.inside == "reference"):
            return "reference"
        return (self.inside) if wanted else None

    def remember(self, names: tuple[str, ...], show: Callable[[], None]) -> None:
        """Do nothing: a forward is watched while it runs. A recorder of plans keeps `show` for later steps."""

    def made(
        self, x: Tensor, op: str, inputs: tuple[Tensor, ...], weights: tuple[Tensor | None, ...], flops: Flops,
        settings: Callable[[], Settings], again: Callable[..., Tensor] | None,
    ) -> None:  # fmt: skip
        """Mark the storage of x with the op that made it, and book the op's FLOPs to the running part."""
        path = here.calls[-1].path.get(self)
        if path is None:
            return
        n = 0 if here.recomputed is not None else flops if isinstance(flops, int) else flops()
        if n:
            self.flops[path] = self.flops.get(path, 0) + n
        operands, own = [name for t in inputs if (name := self.name_of(t))], dict(settings())
        parts: list[str] = []
        for w in (w for w in weights if w is not None):
            if (names := self.weights.names(w)) == ():  # a matrix made of several weights: its mark has their names
                made = self.mark(w.untyped_storage()).made
                names, own = made.weights, {**made.settings, **own}
            parts += names
        mark = self.mark(x.untyped_storage())
        mark.made, mark.flops = Made(op, tuple(operands), tuple(parts), own), n
        if self.grad and self.terms and again is not None and here.recomputed is None:
            mark.reading = Reading(again, weights, layout(x), self.serial)

    def mark(self, storage: torch.UntypedStorage) -> Mark:
        """Return this watch's mark on a storage. Makes one if there is none."""
        marks: dict[int, Mark] = storage.__dict__.setdefault("pellucid", {})
        if (mark := marks.get(self.serial)) is None:
            mark = marks[self.serial] = Mark()
        return mark

    def name_of(self, x: Tensor) -> str | None:
        """Return the path of an operand: of the tap at its offset in the storage, else of the storage's last tap. None if it has none."""
        mark: Mark | None = x.untyped_storage().__dict__.get("pellucid", {}).get(self.serial)
        if mark is None:
            return None
        return mark.names.get(int(x.storage_offset())) or next(reversed(mark.names.values()), None)

    def spot(self, outer: str, label: str) -> Spot:
        name, dims = label.split(": ")
        path = f"{outer}.{name}" if outer else name
        spot = self.spots[outer, label] = Spot(path, dims, dims.split(), self.wants(path), self.changes_of(path))
        return spot

    def find_spot(self, x: Tensor, label: str) -> Spot | None:
        """Return the running part's tap of this label, None if the part is not of the watched model. A ShapeError if x has other axes."""
        call = here.calls[-1]
        if (outer := call.path.get(self)) is None:
            return None
        spot = self.spots.get((outer, label)) or self.spot(outer, label)
        if tuple(map(call.sizes.get, spot.letters)) != x.shape:
            bind(spot.path, spot.dims, x.shape, call.sizes)
        return spot

    def alter(self, x: Tensor, label: str, rows: Tensor | None) -> Tensor:
        """Return the tensor that this watch's changes make of x; x itself if none acts on it."""
        spot = self.find_spot(x, label)
        idle = spot is None or here.recomputed is not None or not (spot.changes or self.values.read)
        return x if spot is None or idle else self.altered(x, spot, rows)

    def altered(self, x: Tensor, spot: Spot, rows: Tensor | None) -> Tensor:
        """Return what the changes of `spot` make of x, and hold it for those that read it."""
        own = False  # x is a copy made here
        for c in spot.changes:
            if (changed := self.change(x, c, spot, rows)) is None:
                continue
            part, new = changed
            x, own = (x if own else copied(x), True) if part else (new, False)
            if part:
                x[part] = new
        return self.values.keep(spot, x)

    def see(self, x: Tensor, label: str, rows: Tensor | None, edited: bool) -> Tensor:
        """Record one tapped tensor. Returns the tensor that the forward uses: x, or with gradients a leaf of the same values."""
        if (spot := self.find_spot(x, label)) is None:
            return x
        cuts = self.cuts(x, spot.dims, rows) if spot.wanted or self.request is not None else None  # of many requests they take long
        if cuts == []:
            return x
        self.any_seen = True
        mark = self.mark(x.untyped_storage())
        flops, mark.flops = mark.flops, 0
        reading, mark.reading = mark.reading, None
        mark.names[int(x.storage_offset())] = spot.path
        if not spot.wanted or cuts is None:
            return x
        if self.grad and here.recomputed is None and torch.is_grad_enabled() and x.is_floating_point() and not x.requires_grad:
            x = x.detach().requires_grad_()
        made, known = Made("edit") if edited else mark.made, flops if len(cuts) == 1 else None
        for request, part, own in cuts:
            place = Place(spot.path, here.calls[-1], here.segment, spot.letters, rows, part, self.step)
            pulls = None if reading is None or edited else Pulls(reading, layout(x), place)
            self.record(spot, x, x[part] if part else x, part, own, made, edited, known, request, pulls)
        return x

    def record(
        self, spot: Spot, x: Tensor, cut: Tensor, part: tuple[Any, ...], rows: Tensor | None, made: Made, edited: bool,
        flops: int | None, request: object = None, pulls: Pulls | None = None,
    ) -> None:  # fmt: skip
        """Hand on the record of `cut`: x, or a request's part of it."""
        self.recorded.add(spot.path)
        which = spot.path, request
        call = self.count.get(which, 0)
        self.count[which] = call + 1
        source = "edited" if edited else here.source if here.recomputed is None else "recomputed"
        own = cut if self.grad and here.recomputed is None else cut.detach()
        value = own if self.keep is None else unwatched(self.keep, own)
        seen = Seen(
            spot.path, spot.dims, tuple(cut.shape), x.dtype, value, self.step, request, call, rows, source, None,
            made.op, made.inputs, made.weights, pulls=pulls, flops=flops, settings=made.settings,
        )  # fmt: skip
        if here.recomputed is not None:
            here.recomputed.append(Recomputed(seen, x if self.grad else None, part))
        elif self.grad and x.requires_grad:
            x.register_hook(functools.partial(take_gradient, weakref.ref(seen), part))
        if here.reference is not None:
            seen.later = functools.partial(here.reference.record, seen, part)
        if self.terms and not edited:
            seen.terms = bounded_terms(seen, terms_of(cut) or indexed_terms(terms_of(x), part))
        self.to(seen)

    def change(self, x: Tensor, c: Change, spot: Spot, rows: Tensor | None) -> tuple[Part, Tensor] | None:
        """Return the index of the rows that `c` may change, and what becomes of them; None if it does not act on x in this step."""
        self.met.add(c)
        request = self.request if c.request is None else c.request
        part = () if request is None else self.part_of_request(x, spot.dims, rows, request)[0]
        if part is None:
            return None
        place = Place(spot.path, here.calls[-1], here.segment, spot.letters, rows, part, self.step, self.values)
        own = (x[part] if part else x).clone()
        if isinstance(c, PartChange) and c.module is not None and not part:  # of one request alone, its rows are no axis of the part's
            self.take_in(c.module, f"{spot.path}.{c.name}")
            new = c.apply(own, place)
        else:
            new = unwatched(lambda own: c.apply(own, place), own)
        if new is None:
            return None
        self.acted.add(c)
        return part, new

    def cuts(self, x: Tensor, dims: str, rows: Tensor | None) -> list[Cut]:
        """Return the parts of x to record: the watched request's, or one for each request of a flat batch, or all of x."""
        if self.request is not None:
            part, rows = self.part_of_request(x, dims, rows)
            return [] if part is None else [(self.request, part, rows)]
        if here.segment is not None and here.segment.request is not None:
            return [(here.segment.request, (), rows)]
        spans = spans_of(here.calls[-1].steps, "T" if "T" in dims.split() or "S" not in dims.split() else "S")
        if len(spans) < 2:
            return [(spans[0].request if spans else None, (), rows)]
        parts = [(s.request, *self.part_of_request(x, dims, rows, s.request)) for s in spans]
        return [(r, part, own) for r, part, own in parts if part is not None] or [(None, (), rows)]

    def part_of_request(self, x: Tensor, dims: str, rows: Tensor | None, request: object = None) -> tuple[Part | None, Tensor | None]:
        """Return a request's part of x, and the request's row of each of its rows. The watched one's if None. A part of None: no row."""
        request = self.request if request is None else request
        if here.segment is not None and here.segment.request is not None:
            return (() if here.segment.request == request else None), None
        call = here.calls[-1]
        return part_of(call.steps, call.sizes, request, dims.split(), rows)

    def require_matches(self) -> None:
        """Raise a TraceError for a change or a pattern that matched no tensor, or no cell. Does nothing if the model did not run."""
        known = dict.fromkeys([*(s.path for s in self.spots.values()), *self.inner, *self.recorded])
        for c in self.changes if self.any_seen else ():
            if c not in self.met:
                raise TraceError("edit.unmet", path=c.path, near=offered(c.path, known, self.aliases))
            if c.at and c.required and c not in self.acted:
                raise TraceError("change.nowhere", change=c.text)
        unmet = (only for only in self.only if not any(fnmatch.fnmatchcase(path, only) for path in self.recorded))
        if self.any_seen and (pattern := next(unmet, None)) is not None:
            raise TraceError("watch.unmet", path=pattern, near=offered(pattern, known, self.aliases))


def take_gradient(of: "weakref.ref[Seen]", part: tuple[Any, ...], gradient: Tensor) -> None:
    """Put a gradient into its record. The reference is weak, so that an autograd graph keeps no record alive."""
    if (seen := of()) is not None:
        seen.grad = gradient[part] if part else gradient


@contextmanager
def watch(
    model: nn.Module,
    only: str | Iterable[str] = "*",
    keep: Callable[[Tensor], Any] | None = None,
    edit: Edit | None = None,
    grad: bool = False,
    request: object = None,
    inside: Inside = "beside",
    terms: bool = False,
    to: Callable[[Seen], None] | None = None,
) -> Iterator[Watch]:
    """Record and edit tapped tensors while this thread runs this module. to: called with each record.  The rest: see `pellucid.watch`."""
    w = Watch(getattr(model, "_orig_mod", model), only, keep, edit, grad, request, inside, terms, to)
    with opened(w):
        yield w
    w.require_matches()


@contextmanager
def opened(w: Watch) -> Iterator[None]:
    """Let a watch record and edit while this thread runs its model. Watches may end in another order than they began in."""
    with EAGER:
        wrap_forwards(w.where, +1)
        here.watches = (*here.watches, w)
        try:
            yield
        finally:
            here.watches = tuple(x for x in here.watches if x is not w)
            wrap_forwards(w.where, -1)
