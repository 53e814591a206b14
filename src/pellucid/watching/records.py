"""Recorded tensors: what a watch and a trace hold, found by their paths."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pellucid.axes import index_of
from pellucid.errors import TraceError
from pellucid.notebook import Shown
from pellucid.watching.pulls import Pulls
from pellucid.watching.tap import Settings, offered
from pellucid.watching.terms import Index, Terms


@dataclass(eq=False, repr=False)
class Seen(Shown):
    """A recorded tensor: its path, its axes, its value and how it was made."""

    path: str  # "layers.3.attn.q"
    dims: str  # "B T H K"
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Any  # the tensor, or what `keep` made of it
    step: int  # which call of the watched model, from 0
    request: object
    call: int  # how often the path was recorded before in this step
    rows: Tensor | None  # for routed rows: the request's token of each, counted from its first in this step
    source: str = "executed"  # or "recomputed" after the kernel, "reference" in its place, "edited"
    error: float | None = None  # of recomputed values: the largest difference of the op's output from the kernel's
    op: str | None = None
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    grad: Tensor | None = None
    terms: Callable[[Index], Terms] | None = None
    pulls: Pulls | None = None  # if the watch keeps terms and gradients: how the op read its weights
    flops: int | None = 0  # of the op whose output this is, booked to the first record of it; None: unknown, for a part of a batch
    settings: Settings = field(default_factory=dict)  # numbers of the op beside its operands: a scale, an eps, a mask's conditions
    later: Callable[[], "Seen"] | None = None  # of a deferred tensor: computes the record with its value

    def __repr__(self) -> str:
        """Return one line: Seen(layers.0.attn.pattern: B 1, H 4, T 5, S 5; float32, executed by softmax)."""
        axes = ", ".join(f"{letter} {n}" for letter, n in zip(self.dims.split(), self.shape, strict=False))
        made = self.source if self.op is None else f"{self.source} by {self.op}"
        return f"Seen({self.path}: {axes}; {str(self.dtype).removeprefix('torch.')}, {made})"


def bounded_terms(seen: Seen, terms: Callable[[Index], Terms] | None) -> Callable[[Index], Terms] | None:
    """Wrap the `terms` of a record: they take an index as `axes.index_of` does, with a UseError for one outside of the tensor."""
    path, dims, shape = seen.path, seen.dims, seen.shape
    return None if terms is None else lambda index: terms(index_of(path, dims, shape, index))


class Records(Shown):
    """Recorded tensors, in the order in which they were made. aliases: other names of paths, by which records are found too."""

    aliases: Mapping[str, tuple[str, ...]] = {}

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def __repr__(self) -> str:
        """Return one line: Watch(124 tensors, embed to logits)."""
        ends = f", {self.seen[0].path} to {self.seen[-1].path}" if self.seen else ""
        return f"{type(self).__name__}({len(self.seen)} tensors{ends})"

    def all(self, path: str) -> list[Seen]:
        """Return every record of this path. A TraceError with the nearest paths if there is none."""
        records = [s for s in self.seen if s.path in self.aliases.get(path, (path,))]
        if not records:
            raise TraceError("trace.unknown", path=path, near=offered(path, (s.path for s in self.seen), self.aliases))
        return records

    def __getitem__(self, path: str) -> Seen:
        """Return the one record of this path. A TraceError if there are several."""
        records = self.all(path)
        if len(records) > 1:
            raise TraceError("trace.many", path=path, count=len(records))
        return records[0]

    def __contains__(self, path: str) -> bool:
        return any(s.path in self.aliases.get(path, (path,)) for s in self.seen)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)

    def first_nan(self) -> Seen | None:
        """Return the first record whose value holds a NaN, in the order in which tensors were made. None if no value that is kept does."""
        return next((s for s in self.seen if has_nan(s.value)), None)

    def paths(self) -> list[str]:
        """Return the recorded paths, each once, in order."""
        return list(dict.fromkeys(s.path for s in self.seen))


def has_nan(value: Any) -> bool:
    """True for a tensor with numbers of which one is NaN."""
    return isinstance(value, Tensor) and not value.is_meta and value.is_floating_point() and bool(value.isnan().any())
