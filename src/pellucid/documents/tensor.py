"""A tensor of a run as JSON, without its values: its place and shape, formula, costs and stats."""

from math import prod
from typing import Annotated, Any, Literal, TypedDict

from pellucid.counting.weights import Weight, by_first_use, parameters
from pellucid.documents.definition import As, Constraint, Count, Path, Setting
from pellucid.documents.formula import block, formula
from pellucid.documents.notation import notes
from pellucid.documents.number import finite
from pellucid.documents.summands import template
from pellucid.ops.kinds import KINDS, Result
from pellucid.runs.kept_run import LetGo, Run, kept, summed
from pellucid.runs.stats import Stats
from pellucid.watching.records import Seen

SCHEMA = 1


class StatsDocument(TypedDict):
    """Stats of a tensor's finite values, in float64; null if there is none."""

    min: float | None
    max: float | None
    mean: float | None
    std: Annotated[float | None, "of the population"]
    absmax: float | None
    nan: Annotated[Count, "values that are NaN"]
    inf: Annotated[Count, "values that are infinite"]


class TensorDocument(TypedDict):
    """A tensor of a run without its values."""

    n: Annotated[Count, "its number within the run"]
    path: Path
    block: Annotated[str, "of its path; empty outside of blocks"]
    name: Annotated[str, "within its block"]
    dims: Annotated[str, Constraint(pattern="^[A-Z0-9+ ]+$")]
    shape: list[Count]
    dtype: str
    step: Count
    call: Annotated[Count, "which call of its module within the step"]
    source: Annotated[str, As(Literal["executed", "recomputed", "reference", "edited"])]
    error: Annotated[float | None, "largest difference of a recomputed tensor from what the kernel gave"]
    op: str | None
    result: Annotated[str | None, As(Result | None), "what the op's output is to a view; null: an op of which no view asks"]
    made: Annotated[str, "its formula"]
    notes: Annotated[
        list[Any],
        As(list[tuple[Annotated[str, Constraint(pattern="^[a-z0-9_.]+$")], dict[str, str]]]),
        'what the signs of the formula mean: a word\'s key after "formula.", and its values',
    ]
    put: Annotated[str, "what a cell's numbers are put into"]
    settings: Annotated[dict[str, Setting], "of the op"]
    inputs: list[Path]
    weights: list[Path]
    bytes: Count
    parameters: Annotated[Count | None, "of weights that no earlier tensor of the step used; null: the model is not here"]
    flops: Annotated[Count | None, "null: not known"]
    rows: Annotated[list[Count] | None, "of routed rows: which token each is of"]
    min: Annotated[float | None, "of all values; null: not finite, or not measured"]
    mean: float | None
    max: float | None
    stats: Annotated[StatsDocument | None, "null: not measured with the run; the server measures it on request"]
    kept: Annotated[bool, "false: its values are computed again on request"]
    terms: Annotated[bool, "the terms of its cells can be had"]


def tensors(run: Run, k: int) -> list[TensorDocument]:
    """Return the documents of the tensors of step `k`."""
    numbers = range(run.firsts[k], run.firsts[k + 1])
    dims, seen = {s.path: s.dims for s in run.trace.seen}, [run.trace.seen[n] for n in numbers]
    first = by_first_use(seen, {} if run.loaded is None else run.loaded.weights)
    return [tensor(run, n, s, dims, own) for n, s, own in zip(numbers, seen, first, strict=True)]


def tensor(run: Run, n: int, s: Seen, dims: dict[str, str], own: tuple[Weight, ...]) -> TensorDocument:
    """Return the document of record `s`, number `n` of the run. own: of its weights, those that no earlier tensor of the step used."""
    count = prod(s.shape)
    place, name = block(s.path)
    little = kept(s) and count <= run.limits.measured
    stats = s.value.stats if isinstance(s.value, LetGo) else run.measure(n, s.value) if little else None
    low, mean, high = extremes(stats, s.dtype.is_floating_point)
    return {
        "n": n,
        "path": s.path,
        "block": place,
        "name": name,
        "dims": s.dims,
        "shape": list(s.shape),
        "dtype": str(s.dtype).removeprefix("torch."),
        "step": s.step,
        "call": s.call,
        "source": s.source,
        "error": finite(s.error),
        "op": s.op,
        "result": KINDS[s.op].result if s.op in KINDS else None,
        "made": formula(s, dims),
        "notes": [[key, values] for key, values in notes(s, dims)],
        "put": template(s),
        "settings": dict(s.settings),
        "inputs": list(s.inputs),
        "weights": list(s.weights),
        "bytes": count * s.dtype.itemsize,
        "parameters": None if run.loaded is None else parameters(own),
        "flops": s.flops,
        "rows": None if s.rows is None or s.rows.is_meta else s.rows.tolist(),
        "min": low,
        "mean": mean,
        "max": high,
        "stats": None if stats is None else stats_to_json(stats),
        "kept": kept(s),
        "terms": summed(run, s),
    }


def extremes(stats: Stats | None, floating: bool) -> tuple[float | None, float | None, float | None]:
    """Return least, mean and greatest of all values, not only of the finite ones; None for one that is not finite.

    floating: True for a dtype of floats; of others least and greatest are ints.
    """
    if stats is None or stats.nan:
        return None, None, None
    low = None if stats.minus_inf else finite(stats.min)
    high = None if stats.inf > stats.minus_inf else finite(stats.max)
    mean = None if stats.inf else finite(stats.mean)
    if floating:
        return low, mean, high
    return None if low is None else int(low), mean, None if high is None else int(high)


def stats_document(run: Run, n: int, s: Seen, stats: Stats) -> dict[str, Any]:
    """Return the stats of tensor `n`. s: its record, with the error of a recomputed one."""
    own = stats_to_json(stats)
    return {"schema": SCHEMA, "run": run.id, "n": n, "path": s.path, "source": s.source, "error": finite(s.error), "stats": own}


def stats_to_json(stats: Stats) -> StatsDocument:
    """Return the stats as JSON; null for those that need a finite value if there is none."""
    return {
        "min": finite(stats.min),
        "max": finite(stats.max),
        "mean": finite(stats.mean),
        "std": finite(stats.std),
        "absmax": finite(stats.absmax),
        "nan": stats.nan,
        "inf": stats.inf,
    }
