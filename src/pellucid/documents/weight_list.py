"""The weights of a model as JSON."""

from typing import Any

from pellucid.runs.model_registry import LoadedModel

SCHEMA = 1


def weights_document(loaded: LoadedModel) -> dict[str, Any]:
    """Return every weight of a model as JSON."""
    rows = [{f: getattr(w, f) for f in ("path", "dims", "axes", "shape", "dtype", "count", "parameter")} for w in loaded.weights.values()]
    return {"schema": SCHEMA, "model": loaded.name, "weights": rows}
