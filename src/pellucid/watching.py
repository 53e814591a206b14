"""Record, and change, what `tap` names while this thread runs a model.

    with watch(model, only="layers.*.attn.pattern") as seen:
        model(ids)
    seen["layers.0.attn.pattern"].value          # [batch, heads, tokens, tokens seen]

While any thread watches, a frame stands around every module's forward; it leaves by `finally`. Nothing else of the model changes.
"""

import difflib
import fnmatch
import functools
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.axes import bind
from pellucid.errors import ShapeError, TraceError
from pellucid.past import Span
from pellucid.step import Step
from pellucid.tap import Call, Index, Made, Terms, aside, here, terms_of

Edit = Callable[[Tensor], Tensor | None]
_serial = itertools.count()


@dataclass(eq=False)
class Seen:
    """One tensor as it was: its path, its axes, its value and how it was made."""

    path: str  # "layers.3.attn.q"
    dims: str  # "B T H K"
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Any  # whatever `keep` made of the tensor
    step: int  # which call of the watched model, from 0
    request: object
    call: int  # which time in this step that the path was seen, from 0
    rows: Tensor | None  # for routed rows: which of the request's tokens, counted from its first in this step
    source: str = "executed"  # or "recomputed" beside the kernel, "reference" in its place, "edited"
    error: float | None = None  # of recomputed values: the largest difference of the op's output from the kernel's
    op: str | None = None
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    grad: Tensor | None = None
    terms: Callable[[Index], Terms] | None = None


class Records:
    """What was seen, in the order in which it was made."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def all(self, path: str) -> list[Seen]:
        """Every record of this path; none is an error that offers the nearest paths."""
        found = [s for s in self.seen if s.path == path]
        if not found:
            raise TraceError("trace.unknown", path=path, near=nearest(path, (s.path for s in self.seen)))
        return found

    def __getitem__(self, path: str) -> Seen:
        found = self.all(path)
        if len(found) > 1:
            raise TraceError("trace.many", path=path, count=len(found))
        return found[0]

    def __contains__(self, path: str) -> bool:
        return any(s.path == path for s in self.seen)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)

    def paths(self) -> list[str]:
        """The paths that were seen, each once, in order."""
        return list(dict.fromkeys(s.path for s in self.seen))


def nearest(path: str, known: Iterable[str]) -> str:
    """Up to three known paths that resemble this one, for an error's last words."""
    return ", ".join(difflib.get_close_matches(path, dict.fromkeys(known), 3, 0.3)) or "-"


class Watch(Records):
    """One watcher of one model. See `watch` for its settings."""

    def __init__(
        self,
        model: nn.Module,
        only: str | Iterable[str] = "*",
        keep: Callable[[Tensor], Any] | None = None,
        edit: Mapping[str, Edit] | None = None,
        grad: bool = False,
        request: object = None,
        inside: str = "beside",
        terms: bool = False,
        to: Callable[[Seen], None] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.only = model, (only,) if isinstance(only, str) else tuple(only)
        self.keep, self.edit, self.grad, self.request, self.inside, self.terms = keep, dict(edit or {}), grad, request, inside, terms
        self.to = to or self.seen.append
        self.serial = next(_serial)  # not self.serial: a tensor outlives its watch, and ids come again
        self.step = -1
        self.spans: tuple[Span, ...] = ()
        self.count: dict[tuple[str, object], int] = {}
        self.edited: set[str] = set()
        self.known: set[str] = set()
        self.wanted: dict[str, bool] = {}
        self.flops: dict[str, int] = {}
        self.where: dict[nn.Module, list[str]] = {}
        for path, m in model.named_modules(remove_duplicate=False):  # a shared module keeps every path
            self.where.setdefault(m, []).append(path)
        self.weights = Weights(model)

    def wants(self, path: str) -> bool:
        if (answer := self.wanted.get(path)) is None:
            answer = self.wanted[path] = any(fnmatch.fnmatchcase(path, o) for o in self.only)
        return answer

    def edits(self, path: str) -> str | None:
        """The key of `edit` that speaks of this path."""
        return next((key for key in self.edit if fnmatch.fnmatchcase(path, key)), None)

    def inside_of(self, names: tuple[str, ...]) -> str | None:
        path = here.calls[-1].path.get(self)
        if path is None or (self.request is not None and here.piece is not None and here.piece.request not in (None, self.request)):
            return None
        full = [f"{path}.{n}".lstrip(".") for n in names]
        wanted = any(map(self.wants, full))
        if any(self.edits(p) for p in full) or (wanted and self.inside == "reference"):
            return "reference"
        return "read" if wanted else None

    def made(
        self,
        storage: torch.UntypedStorage,
        op: str,
        inputs: tuple[Tensor, ...],
        weights: tuple[Tensor | None, ...],
        flops: int | Callable[[], int],
    ) -> None:
        """Write on the storage what made it, for this watch."""
        path = here.calls[-1].path.get(self)
        if path is None:
            return
        if here.marks is None:
            self.flops[path] = self.flops.get(path, 0) + (flops if isinstance(flops, int) else flops())
        slots = storage.__dict__.setdefault("pellucid", {})
        slots[self.serial] = Made(op, tuple(filter(None, map(self.name_of, inputs))), tuple(filter(None, map(self.weights.name, weights))))

    def name_of(self, x: Tensor) -> str | None:
        """The path under which an operand was seen; a view is known by the tap that starts where it does, or else by the last."""
        names: dict[int, str] = x.untyped_storage().__dict__.get("pellucid names", {}).get(self.serial, {})
        return names.get(int(x.storage_offset())) or next(reversed(names.values()), None)

    def see(self, x: Tensor, label: str, rows: Tensor | None) -> Tensor:
        """Check, record and edit one tapped tensor; returns what the forward goes on with."""
        name, dims = label.split(": ")
        call = here.calls[-1]
        if (outer := call.path.get(self)) is None:
            return x
        path = f"{outer}.{name}".lstrip(".")
        bind(path, dims, x.shape, call.sizes)
        self.known.add(path)
        part, renumbered = self.mine(x, dims, rows)
        if part is None:
            return x
        whole = all(p == slice(None) for p in part if isinstance(p, slice)) and all(isinstance(p, slice) for p in part)
        key = None if here.marks is not None else self.edits(path)
        if key is not None:
            x = self.change(x, part, whole, key, path)
        storage = x.untyped_storage()
        storage.__dict__.setdefault("pellucid names", {}).setdefault(self.serial, {})[int(x.storage_offset())] = path
        if not self.wants(path):
            return x
        if self.grad and here.marks is None and x.is_floating_point() and not x.requires_grad:
            x = x.detach().requires_grad_()
        cut = x if whole else x[part]
        which = path, self.request if here.piece is None else here.piece.request
        made: Made = storage.__dict__.get("pellucid", {}).get(self.serial) or Made("tap")
        source = "edited" if key is not None else "recomputed" if here.marks is not None else here.source
        value = cut.detach() if self.keep is None else aside(self.keep, cut)
        seen = Seen(
            path, dims, tuple(cut.shape), x.dtype, value, self.step, which[1], self.count.get(which, 0), renumbered, source
        )  # fmt: skip
        seen.op, seen.inputs, seen.weights = ("edit", (), ()) if key is not None else (made.op, made.inputs, made.weights)
        self.count[which] = seen.call + 1
        if here.marks is not None:
            here.marks.append(seen)
        if self.grad and x.requires_grad:
            x.register_hook(lambda g: setattr(seen, "grad", g[part]))
        if self.terms and key is None:
            seen.terms = terms_of(cut)
        self.to(seen)
        return x

    def change(self, x: Tensor, part: tuple[Any, ...], whole: bool, key: str, path: str) -> Tensor:
        """x with the watched rows replaced by what the user's function makes of them; None from it leaves x as it is."""
        before = x[part]
        new = aside(self.edit[key], before.clone())
        self.edited.add(key)
        if new is None:
            return x
        if not isinstance(new, Tensor) or new.shape != before.shape or new.dtype != before.dtype:
            found = (tuple(new.shape), new.dtype) if isinstance(new, Tensor) else type(new).__name__
            raise ShapeError("edit.shape", path=path, found=found, allowed=(tuple(before.shape), before.dtype))
        if whole:
            return new
        x = x.clone()
        x[part] = new
        return x

    def mine(self, x: Tensor, dims: str, rows: Tensor | None) -> tuple[tuple[Any, ...] | None, Tensor | None]:
        """The index that cuts the watched request out of x, and its rows renumbered from 0; None where x is another request's."""
        everything: tuple[Any, ...] = (slice(None),) * x.ndim
        if here.piece is not None and here.piece.request is not None:
            return (None, None) if self.request not in (None, here.piece.request) else (everything, None)
        if self.request is None:
            return everything, rows
        if not self.spans:
            return (slice(self.request, self.request + 1), *everything[1:]), None  # type: ignore[operator]
        span = next((s for s in self.spans if s.request == self.request), None)
        if span is None:
            return None, None
        words, cut = dims.split(), list(everything)
        if "T" in words:
            cut[words.index("T")] = slice(span.start, span.stop)
            return tuple(cut), torch.arange(span.stop - span.start)
        if "N" in words and rows is not None:
            at = ((rows >= span.start) & (rows < span.stop)).nonzero().flatten()
            cut[words.index("N")] = at
            return tuple(cut), rows[at] - span.start
        return everything, None

    def enter(self, spans: tuple[Span, ...]) -> None:
        """The watched model is called: the next step."""
        self.step, self.count, self.spans = self.step + 1, {}, spans

    def close(self) -> None:
        """An edit that never met its tensor is a mistake in its path."""
        missed = sorted(set(self.edit) - self.edited)
        if missed and self.step >= 0:
            raise TraceError("edit.unmet", path=missed[0], near=nearest(missed[0], self.known))


class Weights:
    """Finds the path of a parameter, or of the parameter that a tensor is a view of, by where it lies in its storage."""

    def __init__(self, model: nn.Module) -> None:
        self.spots: dict[int, list[tuple[int, int, str]]] = {}
        for path, p in [*model.named_parameters(remove_duplicate=True), *model.named_buffers()]:
            spots = self.spots.setdefault(p.untyped_storage()._cdata, [])
            start = int(p.storage_offset())
            spots.append((start, start + p.numel(), path))
        for spots in self.spots.values():
            spots.sort()

    def name(self, w: Tensor | None) -> str | None:
        if w is None or not (spots := self.spots.get(w.untyped_storage()._cdata)):
            return None
        start, stop, path = spots[bisect_right(spots, (w.storage_offset(), float("inf"), "")) - 1]
        return path if start <= w.storage_offset() < max(stop, start + 1) else None


_lock = threading.Lock()
_frames_on: dict[nn.Module, int] = {}


class _Eager:
    """Compiled models run eagerly while any thread watches.

    The stance belongs to the process, and two watches of two threads need not end in the order in which they began: so the first
    sets it and the last restores it.
    """

    watches, stance = 0, None

    def __enter__(self) -> None:
        with _lock:
            self.watches += 1
            if self.watches == 1:
                self.stance = torch.compiler.set_stance("force_eager")
                self.stance.__enter__()

    def __exit__(self, *failure: object) -> None:
        with _lock:
            self.watches -= 1
            if self.watches == 0 and self.stance is not None:
                self.stance.__exit__(None, None, None)


_eager = _Eager()


def _frame(module: nn.Module, forward: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Runs in place of module.forward while any thread watches it; in a thread that watches nothing it is that forward."""
    if not here.watches:
        return forward(*args, **kw)
    calls, root = here.calls, not here.calls
    paths: dict[Watch, str | None] = {}
    for w in here.watches:
        outer = calls[-1].path.get(w) if calls else None
        options = w.where.get(module, ())
        paths[w] = next((p for p in options if outer and p.startswith(outer + ".")), options[0] if options else None)
        if module is w.model:
            w.enter(next((a.spans for a in (*args, *kw.values()) if isinstance(a, Step)), ()))
    sizes = {d: calls[-1].sizes[d] for d in "BT" if calls and d in calls[-1].sizes}
    here.calls = (*calls, Call(module, paths, sizes))
    outer_terms = here.terms
    if root:
        here.terms = {}
    try:
        return forward(*args, **kw)
    finally:
        here.calls, here.terms = calls, outer_terms if root else here.terms


def _frames(model: nn.Module, change: int) -> None:
    """Put a frame around every module's forward, or take it away when the last watch of any thread ends."""
    with _lock:
        for m in dict.fromkeys(model.modules()):
            n = _frames_on[m] = _frames_on.get(m, 0) + change
            if n == 1 and change == 1:
                m.__dict__["forward"] = functools.partial(_frame, m, m.forward)
            elif n == 0:
                del m.__dict__["forward"], _frames_on[m]


@contextmanager
def watch(model: nn.Module, **how: Any) -> Iterator[Watch]:
    """Record, and change, what `tap` names while this thread runs this model.

    only: paths to record, with `*`.  keep: what to keep of a tensor, by default the tensor itself.  edit: {path: f(tensor) -> tensor or
    None}.  grad: gradients by path too.  request: one request of a batch or crowd.  inside: "beside" recomputes what lies in a fused op,
    "reference" runs the open form in its place.  terms: the summands of every cell too.  to: a function that takes each record instead.
    """
    model = getattr(model, "_orig_mod", model)
    w, outer = Watch(model, **how), here.watches
    with _eager:
        _frames(model, +1)
        here.watches = (*outer, w)
        try:
            yield w
        finally:
            here.watches = outer
            _frames(model, -1)
    w.close()
