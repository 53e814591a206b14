"""Pellucid: language models you can see through.

model = pellucid.load("pellucid/capitals")
life = pellucid.trace(model, "The capital of France is")
with pellucid.watch(model, only="layers.*.attn.pattern") as seen:
    model(ids)
bill = pellucid.count("deepseek-v3", context=4096, device="h200")
"""

import importlib
from typing import TYPE_CHECKING

from pellucid.showing import Shown

if TYPE_CHECKING:
    from pellucid.billing import count as count
    from pellucid.errors import PellucidError as PellucidError
    from pellucid.life import trace as trace
    from pellucid.model import Model as Model
    from pellucid.model import load as load
    from pellucid.tracing import Trace as Trace
    from pellucid.tracing import first_difference as first_difference
    from pellucid.tracing import load_trace as load_trace
    from pellucid.tracing import watch as watch

__version__ = "0.1.0"
__all__ = ["Model", "PellucidError", "Trace", "count", "first_difference", "load", "load_trace", "trace", "watch"]

_HOMES = {
    "Model": "model",
    "PellucidError": "errors",
    "Trace": "tracing",
    "count": "billing",
    "first_difference": "tracing",
    "load": "model",
    "load_trace": "tracing",
    "trace": "life",
    "watch": "tracing",
}


Shown._page = lambda: importlib.import_module("pellucid.saved")


def __getattr__(name: str) -> object:
    """Public names come from their modules when first asked for, so that `pellucid --help` need not import torch."""
    if name not in _HOMES:
        raise AttributeError(name)
    found = getattr(importlib.import_module(f"pellucid.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
