"""Adapters as models of their own: a second module over the same weights, which the adapter changes alone."""

import copy
import itertools

from pellucid.api.model import Model


def adapted(model: Model, folder: str, name: str) -> Model:
    """Return the model with the adapter of a folder. Both share every weight and run apart; the given one stays as it is."""
    shared = {id(x): x for x in itertools.chain(model.module.parameters(), model.module.buffers())}
    other = copy.copy(model)
    other.module = copy.deepcopy(model.module, shared)
    other.name, other.engines, other.adapters = name, [], {}
    other.adapt(folder)
    return other
