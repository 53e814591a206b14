"""The terms of one cell: what it is the sum of, by the op that made it, as `explain --cell` prints them."""

from typing import Any

from pellucid.documents.cell import cell_of, document
from pellucid.server.limits import Limits
from pellucid.server.runs import Run
from pellucid.watching.watch import Seen

SCHEMA = 1


def terms_document(run: Run, seen: Seen, index: str, limits: Limits) -> dict[str, Any]:
    """The cell as JSON; of very many summands the first ones, with the sum of all."""
    found = cell_of(seen, index)
    dims = {s.path: s.dims for s in run.trace}
    told, added = document(found, dims), len(found.terms.added)
    most, products = max(limits.summands - added, 0), len(found.terms.summands) - added
    told |= {"factors": {name: column[:most] for name, column in told["factors"].items()}, "count": products + added}
    told["summands"] = [*told["summands"][: min(most, products)], *told["summands"][products:]]
    about = {"op": seen.op, "inputs": list(seen.inputs), "weights": list(seen.weights), "source": seen.source, "error": seen.error}
    return {"schema": SCHEMA, "run": run.id} | told | about
