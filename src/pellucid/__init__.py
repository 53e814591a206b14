"""Pellucid: language models you can see through.

model = pellucid.load("pellucid/capitals")
life = pellucid.trace(model, "The capital of France is")
with pellucid.watch(model, only="layers.*.attn.pattern") as seen:
    model(ids)
bill = pellucid.count("deepseek-v3", context=4096, device="h200")
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from pellucid.showing import Shown

if TYPE_CHECKING:
    from pellucid.attribution import attribution as attribution
    from pellucid.billing import count as count
    from pellucid.difference import first_difference as first_difference
    from pellucid.errors import PellucidError as PellucidError
    from pellucid.lens import lens as lens
    from pellucid.life import trace as trace
    from pellucid.model import Model as Model
    from pellucid.model import load as load
    from pellucid.tracing import Trace as Trace
    from pellucid.tracing import load_trace as load_trace
    from pellucid.tracing import watch as watch
    from pellucid.watching import Seen as Seen

__version__ = "0.1.0"
_HOMES = {
    "Model": "model",
    "PellucidError": "errors",
    "Seen": "watching",
    "Trace": "tracing",
    "attribution": "attribution",
    "count": "billing",
    "first_difference": "difference",
    "lens": "lens",
    "load": "model",
    "load_trace": "tracing",
    "trace": "life",
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

Shown._page = lambda: importlib.import_module("pellucid.saved")


class _Package(ModuleType):
    """The package, in which a function keeps its name when the module of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # to which every name would be public

    def __getattr__(name: str) -> object:
        """Find a public name in its module when it is first asked for, so that `pellucid --help` need not import torch."""
        if name not in _HOMES:
            raise AttributeError(f"pellucid.{name}")
        found = getattr(importlib.import_module(f"pellucid.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, for TAB; those not imported yet too."""
    return sorted({*__all__, "__version__"})
