"""What a run's parts were built to do, as far as no tensor tells it: what their queries may see, and how their routers choose."""

from typing import Any

from torch import nn

from pellucid.batch.mask import Band, Mask, bidirectional, causal, prefix
from pellucid.nn.attention import Attention, CrossAttention
from pellucid.nn.latent import Latent
from pellucid.nn.moe import Moe
from pellucid.server.runs import Run


def masks(run: Run) -> dict[str, Any]:
    """Of each attention: causal but for keys before `until`, the last `window` positions, the own chunk; whether it reads a source, and how
    many keys an indexer leaves.
    """
    if run.held is None:
        return {}
    before = prefix(len(run.trace.ids)) if run.held.config.prefix else None
    found = {path: (m, band(m, before)) for path, m in run.held.module.named_modules() if isinstance(m, Attention | Latent)}
    return {path: mask(m, b) for path, (m, b) in found.items()}


def band(m: nn.Module, before: Mask | None) -> Band:
    """Which keys a query of this part sees, by their positions."""
    seen = before or (m.base if isinstance(m, Attention) else causal)
    if isinstance(m, CrossAttention):
        seen = bidirectional
    elif isinstance(m, Attention):
        for limit in m.limits:
            seen = seen & limit
    assert isinstance(seen.allowed, Band)
    return seen.allowed


def mask(m: nn.Module, b: Band) -> dict[str, Any]:
    index = m.spec.index if isinstance(m, Latent) else None
    told = {"causal": b.causal, "window": b.window, "chunk": b.chunk, "until": b.until}
    return told | {"source": isinstance(m, CrossAttention), "chosen": None if index is None else index.chosen}


def routings(run: Run) -> dict[str, Any]:
    """Of each mixture of experts: how many are chosen, out of how many groups, what a group goes by; and the width of what all visit."""
    if run.held is None:
        return {}
    fields = ("experts", "chosen", "groups", "groups_chosen", "group_best", "corrected", "shared")
    moes = {path: m.spec for path, m in run.held.module.named_modules() if isinstance(m, Moe)}
    return {path: {name: getattr(spec, name) for name in fields} for path, spec in moes.items()}
