"""What becomes of a model's rows when the words of its prompt are shuffled."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.config import Config
from pellucid.runs.answers import visible


@dataclass(frozen=True)
class Shuffled:
    """The logits of a prompt and of its shuffle. order: which word stands where.  gap: between rows of the same word.  pieces: shuffled."""

    order: Sequence[int]
    gap: float
    pieces: Sequence[str]


def shuffled(model: Model, prompt: str, causal: bool, seed: int = 0) -> Shuffled:
    """Run a prompt and a shuffle of its words; compare the rows of each word. causal: whether a word sees the words before it alone."""
    ids = torch.tensor([model.ids(prompt)], device=model.device)
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(seed))
    if torch.equal(order, torch.arange(len(order))):
        order = order.flip(0)
    causally = 0 if model.config.prefix else None
    prefix = causally if causal else ids.shape[1]
    with torch.no_grad():
        straight, mixed = model(ids, prefix=prefix), model(ids[:, order], prefix=prefix)
    pieces = [visible(p) for p in model.tokenizer.pieces(ids[0, order].tolist())]
    return Shuffled(order.tolist(), largest_gap(straight[:, order], mixed), pieces)


def without_positions(cfg: Config) -> dict[str, object]:
    """Return the switches that take from a model all that says where a word stands: tables, rotation, buckets, slopes, windows."""
    switches: dict[str, object] = {} if cfg.positions is None else {"positions": None}
    for name in ("rope", "buckets", "alibi", "window", "chunk", "temper"):
        having = [i for i, layer in enumerate(cfg.layers) if getattr(layer.attn, name, None) is not None]
        switches |= {f"layers.{i}.attn.{name}": None for i in having}
    return switches
