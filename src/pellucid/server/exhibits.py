"""Exhibits for the page: each runs on a model of the registry, within the limits of a run."""

from collections.abc import Mapping
from typing import Any

import torch

from pellucid.api.model import Model
from pellucid.documents.exhibit import ExhibitDocument, exhibit_document
from pellucid.errors import RequestError
from pellucid.exhibits import find
from pellucid.exhibits.exhibit import Exhibit, Opened, run_exhibit
from pellucid.runs.execute import ids_of, square
from pellucid.runs.limits import Limits
from pellucid.runs.memory_budget import TENSORS, largest, require
from pellucid.runs.model_registry import LoadedModel, ModelRegistry
from pellucid.runs.request import described, known, wrong
from pellucid.runs.worker import Stop

EXACT = (torch.float32, torch.float64)  # dtypes in which an exhibit shows a specimen
Settings = dict[str, str | float]


class Gallery:
    """The exhibits of one server. registry: whose models they run on."""

    def __init__(self, registry: ModelRegistry, limits: Limits) -> None:
        self.registry, self.limits, self.opened = registry, limits, Opened()

    def run(self, name: str, model: str, settings: Settings, stop: Stop) -> ExhibitDocument:
        """Run an exhibit on `model`, or on its own specimen if that is "". A RequestError for a model without values."""
        shown = find(name)
        own = self.valued(self.registry[model]) if model else self.specimen(shown.model)
        self.require(shown, own, settings)
        stop.check()
        given = own if model or not shown.own else None
        return exhibit_document(run_exhibit(shown, given, settings, self.specimen, check=stop.check))

    def specimen(self, name: str) -> Model:
        """Return a specimen: the registry's, or where a setting of the server narrowed that one, another in float32."""
        loaded = self.registry[name]
        fits = loaded.model is not None and loaded.has_weights and loaded.model.dtype in EXACT
        return loaded.model if loaded.model is not None and fits else self.opened(name)

    def valued(self, loaded: LoadedModel) -> Model:
        """Return the model itself. A RequestError for one that has shapes alone."""
        if loaded.model is None or not loaded.has_weights:
            raise RequestError("server.exhibit.shapes", 400, "model", model=loaded.name)
        return loaded.model

    def require(self, shown: Exhibit, model: Model, settings: Settings) -> None:
        """Raise a RequestError for a text that is longer than a prompt may be, or whose run would exceed the limit of work."""
        typed = {c.name for c in shown.controls if isinstance(c.value, str) and not c.options}
        for text in (str(value) for name, value in settings.items() if name in typed and value):
            count = len(ids_of(model, text, None, self.limits))
            require(TENSORS * largest(model.module, count) + square(LoadedModel.of(model), count), self.limits)


def exhibit_request(body: Mapping[str, Any], limits: Limits) -> tuple[str, Settings]:
    """Read the model and the settings of a request. A RequestError for a wrong field."""
    known(body, ("model", "settings"), "")
    model, given = body.get("model", ""), body.get("settings") or {}
    if not isinstance(model, str):
        raise wrong("model", described(model), '"..."')
    if not isinstance(given, dict) or len(given) > limits.switches:
        raise wrong("settings", described(given), f"0..{limits.switches}")
    for name, value in given.items():
        if type(value) not in (str, int, float):
            raise wrong(f"settings.{name}", described(value), '"..." | 1.5')
    return model, given
