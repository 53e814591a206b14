"""Two runs side by side: how far each tensor of one is from the other's, and what becomes of the answer.

Rows are compared token by token: where the prompts differ in length, those of their common start and of their common end.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.difference import apart, keyed
from pellucid.arguments import checked
from pellucid.errors import TraceError
from pellucid.ops.sampling.stages import logprobs
from pellucid.tracing import Trace
from pellucid.watching.records import Records, Seen, has_nan

STRIP = 1 << 20  # numbers compared at a time


@dataclass(frozen=True)
class TensorDifference:
    """The difference of a tensor in two runs, over the rows that both have.

    largest: of a cell, at `index`, whose two values are `values`.  relative: ‖b − a‖ / ‖a‖, None where a is 0 or not finite.
    """

    path: str
    step: int
    call: int
    largest: float
    relative: float | None
    index: tuple[int, ...]
    values: tuple[float, float]

    @property
    def changed(self) -> bool:
        """True if a number differs; NaN in both counts as equal."""
        return self.largest != 0.0


@dataclass(frozen=True)
class AnswerDifference:
    """The answers of two runs at one step, as logits [V]. divergence: KL(a‖b) of their distributions, in nats; NaN if one is no number."""

    step: int
    row: int
    logits: tuple[Tensor, Tensor]
    divergence: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What two runs, `a` and `b`, have in common and where they differ.

    rows: the pairs of compared rows of their prompts.  tensors: in the order in which `a` made them.  only_a, only_b: paths of one alone.
    """

    a: Trace
    b: Trace
    rows: list[tuple[int, int]]
    tensors: list[TensorDifference]
    answers: list[AnswerDifference]
    only_a: list[str]
    only_b: list[str]

    @property
    def first(self) -> TensorDifference | None:
        """Return the first tensor that differs, None if all are equal."""
        return next((t for t in self.tensors if t.changed), None)

    @property
    def nans(self) -> list[Seen | None]:
        """Return the first record with a NaN of `a` and of `b`, None where the answers are numbers."""
        broken = [any(has_nan(one.logits[n]) for one in self.answers) for n in range(2)]
        return [run.first_nan() if own else None for run, own in zip((self.a, self.b), broken, strict=True)]

    @property
    def pairs(self) -> list[tuple[int, int]] | None:
        """Return the pairs of compared rows; None where all rows of both prompts are compared in order."""
        return None if len(self.rows) == len(self.a.ids) == len(self.b.ids) else self.rows

    def __repr__(self) -> str:
        changed = [t for t in self.tensors if t.changed]
        place = f", first {changed[0].path}" if changed else ""
        return f"Comparison({len(changed)} of {len(self.tensors)} tensors differ{place})"


@checked
def compare(a: Trace, b: Trace) -> Comparison:
    """Compare every tensor that two traces share: of two prompts, of a model and its variant, with and without a change.

    A TraceError if they share no path, or their prompts no token at either end.
    """
    rows = paired(a.ids, b.ids)
    if not rows:
        raise TraceError("compare.rows", a=len(a.ids), b=len(b.ids))
    ours, theirs = keyed(a), keyed(b)
    shared = [(s, theirs[key]) for key, s in ours.items() if key in theirs]
    if not shared:
        raise TraceError("diff.nothing")
    same = len(rows) == len(a.ids) == len(b.ids)
    tensors = [d for s, t in shared if (d := difference(s, t, None if same else rows)) is not None]
    left = list(dict.fromkeys(s.path for key, s in ours.items() if key not in theirs))
    right = list(dict.fromkeys(s.path for key, s in theirs.items() if key not in ours))
    return Comparison(a, b, rows, tensors, list(answers(a, b)), left, right)


def paired(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of compared rows: all in order where two prompts are equally long, else those of equal ids at both ends."""
    if len(a) == len(b):
        return [(i, i) for i in range(len(a))]
    short = min(len(a), len(b))
    start = next((i for i in range(short) if a[i] != b[i]), short)
    end = next((i for i in range(short - start) if a[-1 - i] != b[-1 - i]), short - start)
    return [(i, i) for i in range(start)] + [(len(a) - i, len(b) - i) for i in range(end, 0, -1)]


def difference(s: Seen, t: Seen, rows: list[tuple[int, int]] | None) -> TensorDifference | None:
    """Return the difference of a record in two runs over paired rows, all where None. None if a value is not kept or shapes differ."""
    if (both := values_beside(s, t, rows)) is None:
        return None
    x, y = both
    largest, index, values = gap(x, y)
    if rows is not None and s.step == 0 and index:
        letters = s.dims.split()
        index = tuple(rows[i][0] if letters[k] in ("T", "S") and x.shape[k] > 1 else i for k, i in enumerate(index))
    size = float(x.double().norm()) if x.numel() else 0.0
    moved = float((y.double() - x.double()).norm()) if x.numel() else 0.0
    relative = moved / size if size and math.isfinite(size) and math.isfinite(moved) else None
    return TensorDifference(s.path, s.step, s.call, largest, relative, index, values)


def values_beside(s: Seen, t: Seen, rows: list[tuple[int, int]] | None) -> tuple[Tensor, Tensor] | None:
    """Return a record's values in two runs over paired rows, all where None. None if a value is not kept or shapes differ."""
    if not isinstance(s.value, Tensor) or not isinstance(t.value, Tensor) or s.value.is_meta or t.value.is_meta:
        return None
    x, y = s.value, t.value
    if rows is not None and s.step == 0:
        for axis, letter in enumerate(s.dims.split()):
            if letter in ("T", "S") and (x.shape[axis], y.shape[axis]) != (1, 1):
                if max(i for i, _ in rows) >= x.shape[axis] or max(j for _, j in rows) >= y.shape[axis]:
                    return None
                x, y = (v.index_select(axis, torch.tensor([r[k] for r in rows], device=v.device)) for k, v in enumerate((x, y)))
    return (x, y) if x.shape == y.shape else None


def gap(a: Tensor, b: Tensor) -> tuple[float, tuple[int, ...], tuple[float, float]]:
    """Return the largest difference of a cell in float64, its index and its two values. NaN in both counts as equal, in one as infinite."""
    largest, at = 0.0, 0
    flat = a.reshape(-1), b.reshape(-1)
    for n, (x, y) in enumerate(zip(flat[0].split(STRIP), flat[1].split(STRIP), strict=True)):
        cells = apart(x.double(), y.double())
        if cells.numel() and float(cells.max()) > largest:
            largest, at = float(cells.max()), n * STRIP + int(cells.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), a.shape)) if a.numel() else ()
    return largest, index, (flat[0][at].item() * 1, flat[1][at].item() * 1) if a.numel() else (0.0, 0.0)  # of a mask 0 and 1


def answers(a: Trace, b: Trace) -> Iterator[AnswerDifference]:
    """Yield the answers of each step that both runs have: of the last row, or of each blank that an encoder fills; none if it has none."""
    ends = [by_step(trace) for trace in (a, b)]
    for step in sorted(ends[0].keys() & ends[1].keys()):
        x, y = ends[0][step], ends[1][step]
        places = zip(a.blanks, b.blanks, strict=False) if encodes(a) else [(-1, -1)]
        for i, j in places:
            if x.shape[-1] == y.shape[-1]:
                p, q = logprobs(x[0, i].double()), logprobs(y[0, j].double())
                apart = torch.where(p.isneginf(), 0.0, p.exp() * (p - q))  # a token that a never writes counts nothing
                yield AnswerDifference(step, i, (x[0, i], y[0, j]), float(apart.sum()))


def encodes(trace: Trace) -> bool:
    """Return whether a run answers at its blanks alone. A trace from a folder has no model; its blanks tell."""
    return bool(trace.blanks) if trace.runner is None else trace.runner.config.bidirectional


def by_step(trace: Records) -> dict[int, Tensor]:
    """Return the logits [1 T V] of each step."""
    kept = [s for s in trace if s.path == "logits" and isinstance(s.value, Tensor) and not s.value.is_meta]
    return {s.step: s.value for s in kept if s.value.ndim == 3}
