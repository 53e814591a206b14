"""A model of the registry with switches: its variant, under the model's own name."""

from collections.abc import Sequence

from pellucid.api.variant import switches, varied
from pellucid.errors import RequestError
from pellucid.runs.limits import Limits
from pellucid.runs.memory_budget import require
from pellucid.runs.model_registry import LoadedModel

SPLIT = 4  # times its largest matrix, in float64, that splitting a matrix in two takes


def switched(loaded: LoadedModel, texts: Sequence[str], limits: Limits) -> LoadedModel:
    """Return `loaded` with the switches that texts of the form NAME=VALUE ask for; `loaded` itself if there are none.

    The registry keeps the model without them. A RequestError for an entry of the catalogue, whose shapes alone are here.
    """
    if not texts:
        return loaded
    if loaded.model is None:
        raise RequestError("server.switch", 400, "with", model=loaded.name)
    if any(name.endswith(".rank") for name in switches(texts)):
        require(SPLIT * 8 * max(w.numel() for w in loaded.module.parameters()), limits)
    made = varied(loaded.model, texts)
    return LoadedModel(loaded.name, loaded.family, made.module, made, plain=loaded)


def alike(one: LoadedModel | None, other: LoadedModel | None) -> bool:
    """True if two runs were computed by one model: the same entry of the registry, with the same switches."""
    if one is None or other is None or (one.plain or one) is not (other.plain or other):
        return False
    return one is other or (one.model is not None and other.model is not None and one.model.switches == other.model.switches)
