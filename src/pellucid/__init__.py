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
    from pellucid.analysis.compare import compare as compare
    from pellucid.analysis.difference import first_difference as first_difference
    from pellucid.analysis.heads import heads as heads
    from pellucid.analysis.lens import lens as lens
    from pellucid.api.count import count as count
    from pellucid.api.metrics import continuation as continuation
    from pellucid.api.model import Model as Model
    from pellucid.api.model import load as load
    from pellucid.api.noise import noise as noise
    from pellucid.api.path_patch import path_patch as path_patch
    from pellucid.api.run import Run as Run
    from pellucid.api.run import train as train
    from pellucid.api.sweep import ablate as ablate
    from pellucid.api.sweep import patch as patch
    from pellucid.api.sweep import sweep as sweep
    from pellucid.api.trace import trace as trace
    from pellucid.api.variant import low_rank as low_rank
    from pellucid.api.variant import variant as variant
    from pellucid.errors import PellucidError as PellucidError
    from pellucid.exhibits.exhibit import exhibit as exhibit
    from pellucid.tracing import Trace as Trace
    from pellucid.tracing import load_trace as load_trace
    from pellucid.tracing import watch as watch
    from pellucid.watching.change import Change as Change
    from pellucid.watching.change import add as add
    from pellucid.watching.change import mean as mean
    from pellucid.watching.change import put as put
    from pellucid.watching.change import take as take
    from pellucid.watching.change import times as times
    from pellucid.watching.change import without as without
    from pellucid.watching.change import zero as zero
    from pellucid.watching.records import Seen as Seen

__version__ = "0.1.0"
_HOMES = {
    "Change": "watching.change",
    "Model": "api.model",
    "PellucidError": "errors",
    "Run": "api.run",
    "Seen": "watching.records",
    "Trace": "tracing",
    "ablate": "api.sweep",
    "add": "watching.change",
    "attribution": "analysis.attribution",
    "compare": "analysis.compare",
    "continuation": "api.metrics",
    "count": "api.count",
    "exhibit": "exhibits.exhibit",
    "first_difference": "analysis.difference",
    "heads": "analysis.heads",
    "lens": "analysis.lens",
    "load": "api.model",
    "load_trace": "tracing",
    "low_rank": "api.variant",
    "mean": "watching.change",
    "noise": "api.noise",
    "patch": "api.sweep",
    "path_patch": "api.path_patch",
    "put": "watching.change",
    "sweep": "api.sweep",
    "take": "watching.change",
    "times": "watching.change",
    "trace": "api.trace",
    "train": "api.run",
    "variant": "api.variant",
    "watch": "tracing",
    "without": "watching.change",
    "zero": "watching.change",
}
__all__ = [
    "Change",
    "Model",
    "PellucidError",
    "Run",
    "Seen",
    "Trace",
    "ablate",
    "add",
    "attribution",
    "compare",
    "continuation",
    "count",
    "exhibit",
    "first_difference",
    "heads",
    "lens",
    "load",
    "load_trace",
    "low_rank",
    "mean",
    "noise",
    "patch",
    "path_patch",
    "put",
    "sweep",
    "take",
    "times",
    "trace",
    "train",
    "variant",
    "watch",
    "without",
    "zero",
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
