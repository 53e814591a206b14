"""What a change reads of the running forward: other tensors by their paths, and what enters a part.

layers.1.ffn = layers.1.ffn_norm     the part left out: what it read goes on
layers.2.out += layers.0.out         a sum across two blocks
layers.1.attn.q.in[T=-1] = 0         before the operation: what this part alone reads
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pellucid.axes import parse
from pellucid.errors import ShapeError, TraceError, nearest
from pellucid.watching.tap import Spot, here, matcher

if TYPE_CHECKING:
    from pellucid.watching.change import Cells
    from pellucid.watching.watch import Watch

ENTERS = ".in"  # after a part's path: the rows that it reads


class ForwardValues:
    """The newest tensors of a forward that changes read, by path. patterns: the paths, which may hold `*`.  read: True if there are any."""

    def __init__(self, patterns: Iterable[str]) -> None:
        own = tuple(pattern for pattern in patterns if pattern)
        self.read, self.wants = bool(own), matcher(own)
        self.tensors: dict[str, tuple[Tensor, list[str]]] = {}
        self.made: dict[str, None] = {}

    def keep(self, spot: Spot, x: Tensor) -> Tensor:
        """Return x. Keeps it where a change reads its path."""
        self.made[spot.path] = None
        if self.wants(spot.path):
            self.tensors[spot.path] = x, spot.letters
        return x

    def cells(self, path: str, which: "Cells") -> Tensor:
        """Return the cells of the tensor at `path` that `which` names in another. A ShapeError if it has none there."""
        if path not in self.tensors:
            raise TraceError("change.unmade", change=which.text, path=path, near=nearest(path, self.made) or "-")
        x, letters = self.tensors[path]
        own = x[which.part] if which.part and letters[: len(which.part)] == which.letters[: len(which.part)] else x
        sizes = zip(which.numbers, own.shape, strict=False)
        if own.ndim != len(which.numbers) or any(len(n) and int(n.max()) >= size for n, size in sizes):
            raise ShapeError("change.read", change=which.text, path=path, found=" ".join(letters), allowed=" ".join(which.letters))
        new = own[which.index()]
        return new.squeeze(which.dropped) if which.dropped else new


@cache
def stars(pattern: str) -> re.Pattern[str]:
    """Return the expression of a path with `*`, each of which is a group."""
    return re.compile("(.+)".join(map(re.escape, pattern.split("*"))))


def filled(reads: str, pattern: str, path: str) -> str:
    """Return `reads` with its `*` as in `path`, which `pattern` matched: "layers.*.ffn_norm", "layers.*.ffn", "layers.1.ffn"."""
    fits = stars(pattern).fullmatch(path)
    for own in fits.groups() if fits else ():
        reads = reads.replace("*", own, 1)
    return reads


def enter(w: "Watch", args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of the running part, its rows as changes before it make them."""
    call = here.calls[-1]
    if not (path := call.path.get(w)) or here.recomputed is not None:
        return args
    n = next((n for n, x in enumerate(args) if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3), None)
    own = path + ENTERS
    if n is None or not (w.changes_of(own) or w.values.wants(own)):
        return args
    if (last := last_axis(w, path)) is None:
        return args
    letters = ["B", "T", last]
    spot = Spot(own, " ".join(letters), letters, False, w.changes_of(own))
    return (*args[:n], w.altered(args[n], spot, None), *args[n + 1 :])


def last_axis(w: "Watch", path: str) -> str | None:
    """Return the letter of the numbers in a row that enters a part: of its weight's last axis, "D" for a part of several weights.

    None where several axes are joined in it, as heads before `o`: the tensor before has them apart, and nothing else reads it.
    """
    outer, _, name = path.rpartition(".")
    axes = next((getattr(m, "axes", {}) for m, paths in w.where.items() if outer in paths), {})
    if name not in axes:
        return "D"
    last = parse(axes[name])[-1]
    return last[0][0] if len(last) == 1 and len(last[0]) == 1 else None
