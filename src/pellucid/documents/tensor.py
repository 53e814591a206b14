"""A tensor of a run as JSON, without its values: what it is, what made it, what that took, and what the values range over."""

from math import prod
from typing import Any

from pellucid.counting.weights import Weight, by_first_use, parameters
from pellucid.documents.formula import block, formula
from pellucid.documents.notation import notes
from pellucid.documents.number import finite
from pellucid.documents.summands import template
from pellucid.runs.kept_run import LetGo, Run, kept, summed
from pellucid.runs.stats import Stats
from pellucid.watching.watch import Seen

SCHEMA = 1


def tensor(run: Run, n: int, s: Seen, dims: dict[str, str], own: tuple[Weight, ...]) -> dict[str, Any]:
    """One tensor without its values: what it is, what made it, what that took, and what the values range over.

    own: of its weights, those that no earlier tensor of the step used; `parameters` counts these.
    """
    count = prod(s.shape)
    place, name = block(s.path)
    little = kept(s) and count <= run.limits.measured
    stats = s.value.stats if isinstance(s.value, LetGo) else run.measure(n, s.value) if little else None
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
        "made": formula(s, dims),
        "notes": [[key, values] for key, values in notes(s, dims)],
        "put": template(s),
        "inputs": list(s.inputs),
        "weights": list(s.weights),
        "bytes": count * s.dtype.itemsize,
        "parameters": None if run.loaded is None else parameters(own),
        "flops": s.flops,
        "rows": None if s.rows is None or s.rows.is_meta else s.rows.tolist(),
        "stats": None if stats is None else told(stats),
        "kept": kept(s),
        "terms": summed(run, s),
    }


def tensors(run: Run, k: int) -> list[dict[str, Any]]:
    """The tensors of one step by their numbers within the run."""
    found = range(run.firsts[k], run.firsts[k + 1])
    dims, seen = {s.path: s.dims for s in run.trace.seen}, [run.trace.seen[n] for n in found]
    first = by_first_use(seen, {} if run.loaded is None else run.loaded.weights)
    return [tensor(run, n, s, dims, own) for n, s, own in zip(found, seen, first, strict=True)]


def stats_document(run: Run, n: int, s: Seen, stats: Stats) -> dict[str, Any]:
    """What the values of one tensor range over. s: its record with them, and with the difference that a recomputed one has."""
    return {"schema": SCHEMA, "run": run.id, "n": n, "path": s.path, "source": s.source, "error": finite(s.error), "stats": told(stats)}


def told(stats: Stats) -> dict[str, float | int | None]:
    """As JSON; of no finite value at all, null."""
    return {k: finite(v) if isinstance(v, float) else v for k, v in vars(stats).items()}
