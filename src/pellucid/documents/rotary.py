"""The turns of a query and of a key: every pair of channels that rotary positions turned, before and after, with the angles that ran."""

from typing import Any

import torch

from pellucid.config import Rope
from pellucid.documents.cell import cell_of
from pellucid.documents.lens import model_of
from pellucid.errors import RequestError
from pellucid.ops.rotate import frequencies
from pellucid.runs.execute import whole
from pellucid.runs.kept_run import Run
from pellucid.runs.worker import Stop
from pellucid.watching.watch import Seen

SCHEMA = 1


def turns_document(run: Run, part: str, query: int, key: int, head: int, n: int, stop: Stop) -> dict[str, Any]:
    """Of a query's and a key's position in one head, as they stand in step n. product: what a pair adds to q·k; total: their sum.

    frequency: the query's.  angles: position times radians a token; cos, sin, before and after are the numbers that ran.
    """
    rope = rope_of(run, part)
    (q, q_row, q_total), (k, k_row, k_total) = (rotated(run, part, at, asks, n, stop) for at, asks in ((query, True), (key, False)))
    heads = q.shape[q.dims.split().index("H")]
    if head >= heads:
        raise RequestError("server.field", 400, "head", name="head", found=head, allowed=f"0..{heads - 1}")
    sides = [[pair(s, place(s, row, head, heads), c) for c in channels(rope)] for s, row in ((q, q_row), (k, k_row))]
    totals = torch.tensor([[q_total], [k_total]]) if rope.by_length else None
    speeds = frequencies(rope, torch.float64, totals=totals).expand(2, 1, -1)[:, 0].T.tolist()
    told = [written(c, f, (query, key), both) for c, f, both in zip(channels(rope), speeds, zip(*sides, strict=True), strict=True)]
    about = {"schema": SCHEMA, "run": run.id, "part": part, "head": head, "query": query, "key": key, "theta": rope.theta}
    return about | {"scaling": rope.scaling_name, "pairs": told, "total": sum(p["product"] for p in told)}


def rope_of(run: Run, part: str) -> Rope:
    """What turns the channels of a part."""
    try:
        found: Any = model_of(run).module.get_submodule(part)
    except AttributeError:
        found = None
    rope = getattr(found, "rope", None) or getattr(getattr(found, "spec", None), "rope", None)
    if not isinstance(rope, Rope):
        raise RequestError("server.turns", 404, "part", path=part)
    return rope


def rotated(run: Run, part: str, at: int, asks: bool, last: int, stop: Stop) -> tuple[Seen, int, int]:
    """The turned queries or keys of the step up to `last` that computed a position latest, their row in it, and the text's length then."""
    for n, s in reversed(list(enumerate(run.trace.seen))):
        if s.step <= last and s.op == "rotate" and s.path.rpartition(".")[0] == part and ("H" in s.dims.split()) == asks:
            before = run.fed(s.step)[1]
            if before <= at < before + s.shape[1]:
                return whole(run, n, stop, terms=True), at - before, before + s.shape[1]
    raise RequestError("server.turns", 404, "query" if asks else "key", path=f"{part}: {at}")


def place(s: Seen, row: int, head: int, heads: int) -> tuple[int, ...]:
    """The index of a row of a head, or of the key head that it reads, but for the channel."""
    sizes = dict(zip(s.dims.split(), s.shape, strict=True))
    at = {"T": row, "H": head, "G": head * sizes.get("G", 1) // heads}
    return tuple(at.get(axis, 0) for axis in s.dims.split()[:-1])


def channels(rope: Rope) -> list[tuple[int, int]]:
    """The two channels of every pair."""
    half = rope.width // 2
    return [(2 * i, 2 * i + 1) if rope.interleaved else (i, i + half) for i in range(half)]


def pair(s: Seen, at: tuple[int, ...], c: tuple[int, int]) -> tuple[list[float], list[float], list[float]]:
    """(before, after, (cos, sin)) of two channels."""
    x, turn = (f.tolist() for f in cell_of(s, ",".join(map(str, (*at, c[0])))).terms.factors.values())
    return x, [float(s.value[(*at, i)]) for i in c], [turn[0], -turn[1]]


def written(c: tuple[int, int], speeds: list[float], at: tuple[int, int], both: tuple[Any, Any]) -> dict[str, Any]:
    """A pair as JSON, its query first, its key second."""
    (_, q, _), (_, k, _) = both
    told = {name: [side[i] for side in both] for i, name in enumerate(("before", "after", "turn"))}
    return {
        "channels": c,
        "frequency": speeds[0],
        "angles": [f * n for f, n in zip(speeds, at, strict=True)],
        **told,
        "product": q[0] * k[0] + q[1] * k[1],
    }
