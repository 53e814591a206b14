"""Two runs compared tensor by tensor: which tensors differ, and by how much.

Equal stats do not make equal tensors, so the numbers themselves are compared. A tensor that is not kept is not computed for this: it is
the same if its inputs are the same and the model is.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypedDict

import torch

from pellucid.analysis.compare import gap
from pellucid.analysis.difference import apart
from pellucid.documents.definition import Count, Path, RunId
from pellucid.documents.number import finite
from pellucid.errors import RequestError
from pellucid.runs import slices
from pellucid.runs.execute import full_record
from pellucid.runs.kept_run import Run, kept
from pellucid.runs.switched_model import alike
from pellucid.runs.worker import Stop
from pellucid.watching.records import Seen

SCHEMA: Final = 1
AXES: Final[dict[str, Literal["T", "H"]]] = {".out": "T", ".attn.z": "H"}  # of paths that end so
MOST = 64  # rows or heads of a table


class DifferenceDocument(TypedDict):
    """A tensor of two runs."""

    n: Annotated[Count, "its number in the run"]
    other: Annotated[Count, "its number in the other run"]
    path: Path
    call: Count
    changed: bool
    largest: Annotated[float | None, "difference of a number; null: not compared, or not finite"]


class AxisDifferenceOfRunsDocument(TypedDict):
    """How far a tensor of two runs is at each row or head."""

    n: Annotated[Count, "its number in the run"]
    path: Path
    axis: Literal["T", "H"]
    shares: Annotated[list[float | None], "‖b − a‖ / ‖a‖ at each index; null: a is 0 there and b is not"]
    cells: Annotated[list[list[Count]], "the cell of each index that differs most"]


class DifferencesDocument(TypedDict):
    """The tensors of the first step that two runs both have."""

    schema: Literal[1]
    run: RunId
    other: RunId
    tensors: list[DifferenceDocument]
    along: Annotated[list[AxisDifferenceOfRunsDocument], "what leaves each block by rows, and its attention by heads"]


def differences_document(run: Run, other: Run, stop: Stop) -> DifferencesDocument:
    """Return each tensor of the first step that both runs have: whether it differs, and its largest difference if both are kept."""
    theirs = {(s.path, s.call): (m, s) for m, s in enumerate(other.trace.seen[: other.firsts[1]])}
    same = alike(run.loaded, other.loaded)
    changed: dict[str, bool] = {}
    tensors: list[DifferenceDocument] = []
    for n, s in enumerate(run.trace.seen[: run.firsts[1]]):
        if (s.path, s.call) not in theirs:
            continue
        stop.check()
        m, t = theirs[s.path, s.call]
        largest = gap(s.value, t.value)[0] if s.shape == t.shape and kept(s) and kept(t) else None
        moved = largest != 0.0 if largest is not None else s.shape != t.shape or not same or unlike(s, t, run, other, changed)
        changed[s.path] = changed.get(s.path, False) or moved
        tensors.append({"n": n, "other": m, "path": s.path, "call": s.call, "changed": moved, "largest": finite(largest)})
    return {"schema": SCHEMA, "run": run.id, "other": other.id, "tensors": tensors, "along": list(by_axes(run, other, stop))}


def by_axes(run: Run, other: Run, stop: Stop) -> Iterator[AxisDifferenceOfRunsDocument]:
    """Yield the difference of each block's output by rows, and of its heads' outputs by heads, where both runs keep them in one shape."""
    theirs = {s.path: s for s in other.trace.seen[: other.firsts[1]]}
    for n, s in enumerate(run.trace.seen[: run.firsts[1]]):
        axis = next((letter for end, letter in AXES.items() if s.path.startswith("layers.") and s.path.endswith(end)), None)
        t = theirs.get(s.path)
        if axis is None or t is None or axis not in (letters := s.dims.split()) or s.shape != t.shape or not (kept(s) and kept(t)):
            continue
        at = letters.index(axis)
        if s.shape[at] > MOST:
            continue
        stop.check()
        x, y = (v.double().movedim(at, 0) for v in (s.value, t.value))
        shares, cells = [], []
        for i, (a, b) in enumerate(zip(x, y, strict=True)):
            moved = float((b - a).norm())
            shares.append(0.0 if moved == 0 else finite(moved / float(a.norm())) if a.any() else None)
            cell = [int(j) for j in torch.unravel_index(apart(a, b).argmax(), a.shape)]
            cells.append([*cell[:at], i, *cell[at:]])
        yield {"n": n, "path": s.path, "axis": axis, "shares": shares, "cells": cells}


def unlike(s: Seen, t: Seen, run: Run, other: Run, changed: dict[str, bool]) -> bool:
    """True if a tensor that is not kept may differ: it is edited, or one of its inputs differs."""
    made = any(changed.get(path, True) for path in s.inputs) if s.inputs else run.trace.ids != other.trace.ids
    return made or "edited" in (s.source, t.source)


def difference(run: Run, n: int, other: Run, m: int, at: str | None, level: slices.Level, stop: Stop) -> bytes:
    """Return the other run's tensor less this one's as the bytes of a safetensors file. A RequestError if the parts' shapes differ."""
    s, t = run.seen(n), other.seen(m)
    parts = [slices.part_of(at, x.shape) for x in (s, t)]
    sizes = [slices.size_of(p, x.shape) for p, x in zip(parts, (s, t), strict=True)]
    if sizes[0] != sizes[1]:
        raise RequestError("server.patch", 400, "m", path=s.path, found=sizes[1], allowed=sizes[0])
    wide = torch.float64 if torch.float64 in (s.dtype, t.dtype) else torch.float32
    slices.require(parts[0], s.shape, wide, level, run.limits)
    before, after = (full_record(r, i, stop).value[p].double() for r, i, p in ((run, n, parts[0]), (other, m, parts[1])))
    apart = (after - before).to(wide)
    return slices.packed(apart, (slice(None),) * apart.ndim, level, s.path)
