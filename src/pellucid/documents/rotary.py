"""The turns of a query and of a key: every pair of channels that rotary positions turned, before and after, with the angles that ran."""

from typing import Annotated, Any, Final, Literal, TypedDict

import torch

from pellucid.config import Rope
from pellucid.documents.cell import cell_of
from pellucid.documents.definition import As, Count, Path, RunId
from pellucid.documents.lens import model_of
from pellucid.errors import RequestError
from pellucid.ops.rotate import frequencies
from pellucid.runs.execute import full_record
from pellucid.runs.kept_run import Run
from pellucid.runs.worker import Stop
from pellucid.watching.records import Seen

SCHEMA: Final = 1
Two = Annotated[list[float], As(tuple[float, float])]
Four = Annotated[list[list[float]], As(tuple[tuple[float, float], tuple[float, float]])]  # of the query, then of the key


class PairDocument(TypedDict):
    """Two channels of a query and of a key that positions turn together."""

    channels: tuple[Count, Count]
    frequency: Annotated[float, "the query's, in radians a token"]
    angles: Annotated[Two, "position times frequency"]
    before: Annotated[Four, "of the query, then of the key"]
    after: Annotated[Four, "of the query, then of the key"]
    turn: Annotated[Four, "cos and sin"]
    product: Annotated[float, "of the two turned pairs"]


class TurnsDocument(TypedDict):
    """A query and a key of one head as rotary positions turned them."""

    schema: Literal[1]
    run: RunId
    part: Path
    head: Count
    query: Annotated[Count, "its position"]
    key: Annotated[Count, "its position"]
    theta: float
    scaling: str | None
    pairs: list[PairDocument]
    total: Annotated[float, "the sum of the products: their part of q · k"]


def turns_document(run: Run, part: str, query: int, key: int, head: int, n: int, stop: Stop) -> TurnsDocument:
    """Return the turned pairs of a query and a key, by position, in one head at step `n`. The numbers are those that ran."""
    rope = rope_of(run, part)
    (q, q_row, q_total), (k, k_row, k_total) = (rotated(run, part, at, asks, n, stop) for at, asks in ((query, True), (key, False)))
    heads = q.shape[q.dims.split().index("H")]
    if head >= heads:
        raise RequestError("server.field", 400, "head", name="head", found=head, allowed=f"0..{heads - 1}")
    sides = [[pair(s, place(s, row, head, heads), c) for c in channels(rope)] for s, row in ((q, q_row), (k, k_row))]
    totals = torch.tensor([[q_total], [k_total]]) if rope.by_length else None
    speeds = frequencies(rope, torch.float64, totals=totals).expand(2, 1, -1)[:, 0].T.tolist()
    pairs = [written(c, f, (query, key), both) for c, f, both in zip(channels(rope), speeds, zip(*sides, strict=True), strict=True)]
    return {
        "schema": SCHEMA,
        "run": run.id,
        "part": part,
        "head": head,
        "query": query,
        "key": key,
        "theta": rope.theta,
        "scaling": rope.scaling_name,
        "pairs": pairs,
        "total": sum(p["product"] for p in pairs),
    }


def rope_of(run: Run, part: str) -> Rope:
    """Return the Rope of the part at this path. A RequestError if it has none."""
    try:
        module: Any = model_of(run).module.get_submodule(part)
    except AttributeError:
        module = None
    rope = getattr(module, "rope", None) or getattr(getattr(module, "spec", None), "rope", None)
    if not isinstance(rope, Rope):
        raise RequestError("server.turns", 404, "part", path=part)
    return rope


def rotated(run: Run, part: str, at: int, asks: bool, last: int, stop: Stop) -> tuple[Seen, int, int]:
    """Return the latest record up to step `last` that turned position `at`, the position's row in it, and the length of the text then.

    asks: True for queries, False for keys. A RequestError if no step turned it.
    """
    for n, s in reversed(list(enumerate(run.trace.seen))):
        if s.step <= last and s.op == "rotate" and s.path.rpartition(".")[0] == part and ("H" in s.dims.split()) == asks:
            before = run.fed(s.step)[1]
            if before <= at < before + s.shape[1]:
                return full_record(run, n, stop, terms=True), at - before, before + s.shape[1]
    raise RequestError("server.turns", 404, "query" if asks else "key", path=f"{part}: {at}")


def place(s: Seen, row: int, head: int, heads: int) -> tuple[int, ...]:
    """Return the index of a head's row without the channel; in keys that of the key head which the query head reads."""
    sizes = dict(zip(s.dims.split(), s.shape, strict=True))
    at = {"T": row, "H": head, "G": head * sizes.get("G", 1) // heads}
    return tuple(at.get(axis, 0) for axis in s.dims.split()[:-1])


def channels(rope: Rope) -> list[tuple[int, int]]:
    """Return the two channels of every pair."""
    half = rope.width // 2
    return [(2 * i, 2 * i + 1) if rope.interleaved else (i, i + half) for i in range(half)]


def pair(s: Seen, at: tuple[int, ...], c: tuple[int, int]) -> tuple[list[float], list[float], list[float]]:
    """Return (before, after, [cos, sin]) of the two channels `c` at the index `at`."""
    x, turn = (f.tolist() for f in cell_of(s, ",".join(map(str, (*at, c[0])))).terms.factors.values())
    return x, [float(s.value[(*at, i)]) for i in c], [turn[0], -turn[1]]


def written(c: tuple[int, int], speeds: list[float], at: tuple[int, int], both: tuple[Any, Any]) -> PairDocument:
    """Return a pair as JSON, its query first, its key second."""
    (_, q, _), (_, k, _) = both
    before, after, turn = ([side[i] for side in both] for i in range(3))
    return {
        "channels": c,
        "frequency": speeds[0],
        "angles": [f * n for f, n in zip(speeds, at, strict=True)],
        "before": before,
        "after": after,
        "turn": turn,
        "product": q[0] * k[0] + q[1] * k[1],
    }
