"""What a run's parts were built to do, as far as no tensor tells it: what their queries may see, and how their routers choose."""

from typing import Any

import torch

from pellucid.batch.mask import Band, prefix
from pellucid.batch.step import Step
from pellucid.nn.moe import Moe
from pellucid.runs.kept_run import Run


def masks(run: Run) -> dict[str, Any]:
    """For each attention: causal but for keys before `until`, the last `window` positions, its own chunk; whether it reads a source, and
    how many keys an indexer leaves.
    """
    if run.loaded is None:
        return {}
    before = prefix(len(run.trace.ids)) if run.loaded.config.prefix else None
    step = Step(torch.empty(1, 0, dtype=torch.long), mask=before)
    return {path: mask(m, step) for path, m in run.loaded.module.named_modules() if hasattr(m, "mask")}


def mask(part: Any, step: Step) -> dict[str, Any]:
    """The mask of a part as data."""
    band = part.mask(step).allowed
    assert isinstance(band, Band)
    told = {"causal": band.causal, "window": band.window, "chunk": band.chunk, "until": band.until}
    return told | {"source": bool(part.reads_source), "chosen": None if part.indexer is None else part.indexer.chosen}


def routings(run: Run) -> dict[str, Any]:
    """Of each mixture of experts: how many are chosen, out of how many groups, what a group goes by; and the width of what all visit."""
    if run.loaded is None:
        return {}
    fields = ("experts", "chosen", "groups", "groups_chosen", "group_best", "corrected", "shared")
    moes = {path: m.spec for path, m in run.loaded.module.named_modules() if isinstance(m, Moe)}
    return {path: {name: getattr(spec, name) for name in fields} for path, spec in moes.items()}
