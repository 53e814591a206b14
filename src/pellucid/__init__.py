"""Pellucid: language models you can see through.

model = pellucid.load("pellucid/capitals")
life = pellucid.trace(model, "The capital of France is")
with pellucid.watch(model, only="layers.*.attn.pattern") as seen:
    model(ids)
bill = pellucid.count("deepseek-v3", context=4096, device="h200")
"""

import importlib
from typing import TYPE_CHECKING

from pellucid.notebook import Shown

if TYPE_CHECKING:
    from pellucid.analysis.attribution import attribution as attribution
    from pellucid.analysis.difference import first_difference as first_difference
    from pellucid.analysis.lens import lens as lens
    from pellucid.api.count import count as count
    from pellucid.api.model import Model as Model
    from pellucid.api.model import load as load
    from pellucid.api.trace import trace as trace
    from pellucid.errors import PellucidError as PellucidError
    from pellucid.tracing import Trace as Trace
    from pellucid.tracing import load_trace as load_trace
    from pellucid.tracing import watch as watch
    from pellucid.watching.watch import Seen as Seen

__version__ = "0.1.0"
_HOMES = {
    "Model": "api.model",
    "PellucidError": "errors",
    "Seen": "watching.watch",
    "Trace": "tracing",
    "attribution": "analysis.attribution",
    "count": "api.count",
    "first_difference": "analysis.difference",
    "lens": "analysis.lens",
    "load": "api.model",
    "load_trace": "tracing",
    "trace": "api.trace",
    "watch": "tracing",
}
__all__ = [
    "Model",
    "PellucidError",
    "Seen",
    "Trace",
    "attribution",
    "count",
    "first_difference",
    "lens",
    "load",
    "load_trace",
    "trace",
    "watch",
]

Shown._page = lambda: importlib.import_module("pellucid.html")


if not TYPE_CHECKING:  # to which every name would be public

    def __getattr__(name: str) -> object:
        """Find a public name in its module at its first use, so that `pellucid --help` need not import torch."""
        if name not in _HOMES:
            raise AttributeError(f"pellucid.{name}")
        value = getattr(importlib.import_module(f"pellucid.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, for TAB; those not imported yet too."""
    return sorted({*__all__, "__version__"})
