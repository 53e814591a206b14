"""The terms of one cell: what it is the sum of, by the op that made it, as `explain --cell` prints them."""

from typing import Any

from pellucid.draw.cell import cell_of, document
from pellucid.draw.formula import formula
from pellucid.server.limits import Limits
from pellucid.server.runs import Run
from pellucid.watching import Seen

SCHEMA = 1


def terms_document(run: Run, seen: Seen, index: str, limits: Limits) -> dict[str, Any]:
    """The cell as JSON; of very many summands the first ones, with the sum of all."""
    found = cell_of(seen, index)
    dims = {s.path: s.dims for s in run.trace}
    told = document(found, formula(seen, None if run.held is None else run.held.module, dims))
    most = limits.summands
    told |= {"factors": {name: column[:most] for name, column in told["factors"].items()}, "count": len(told["summands"])}
    told["summands"] = told["summands"][:most]
    about = {"op": seen.op, "inputs": list(seen.inputs), "weights": list(seen.weights), "source": seen.source, "error": seen.error}
    return {"schema": SCHEMA, "run": run.id} | told | about
