"""The ordinary forward on the meta device: shapes without numbers, whose products and stored rows are counted.

There is no formula of a model here: FLOPs come from the ops that ran, bytes from what the parts stored.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import prefix
from pellucid.batch.plain_rows import Stored
from pellucid.batch.states import MatrixState, States
from pellucid.batch.step import Step
from pellucid.config import Config
from pellucid.nn.transformer import Decoder, EncoderDecoder, build, cast
from pellucid.ops.kinds import is_product
from pellucid.watching.meta import META
from pellucid.watching.watch import Watch, watch


@dataclass
class MetaStep(Step):
    """A step of T new rows after `before` stored ones, for each of B requests."""

    before: int = 0
    stored: dict[nn.Module, Stored] = field(default_factory=dict)
    kept_states: dict[nn.Module, Tensor] = field(default_factory=dict)

    def states(self, part: MatrixState, like: Tensor) -> States:
        """Record the state that a part keeps of one text."""
        self.kept_states[part] = like.new_empty(part.shape)
        return super().states(part, like)

    def store(self, part: nn.Module, *new: Tensor) -> KVCache:
        """Record what the part stores; return a cache of the length that it would have."""
        self.stored[part] = new
        rows = self.before + new[0].shape[1]
        k_at = torch.arange(rows, device=META).expand(new[0].shape[0], -1)
        stored = tuple(n.new_empty(n.shape[0], rows, *n.shape[2:]) for n in new)
        return KVCache([Segment(None, slice(None), self.positions, lambda: k_at, lambda: stored, True)], new)


@dataclass(frozen=True)
class Ran:
    """The counts of one forward on meta. flops: by the path of the part that ran, a multiply-add as two.

    elements: numbers that elementwise ops made, by path.  stored: {path of a part: shapes of one request's one token} in the cache.
    remembered: the same of an encoder's rows that a decoder keeps.  states: {path: shape of one request's state}.
    """

    flops: dict[str, int]
    elements: dict[str, int]
    stored: dict[str, tuple[tuple[int, ...], ...]]
    remembered: dict[str, tuple[tuple[int, ...], ...]]
    states: dict[str, tuple[int, ...]]


def meta_model(cfg: Config, dtype: torch.dtype) -> Decoder | EncoderDecoder:
    """Return a model on meta."""
    with META:
        model = build(cfg)
    return cast(model, dtype).eval()


@lru_cache(512)
def ran(cfg: Config, rows: int, before: int, batch: int, source: int | None = None) -> Ran:
    """Return what `run` counts of a config's model. One forward serves bills that differ in a device or in their dtypes alone."""
    return run(meta_model(cfg, torch.bfloat16), rows, before, batch, source)


def run(model: Decoder | EncoderDecoder, rows: int, before: int, batch: int, source: int | None = None) -> Ran:
    """Run one forward of `rows` new tokens after `before` stored ones for each of `batch` requests. source: tokens of an encoder."""
    at = torch.arange(before, before + rows, device=META).expand(batch, -1)
    step = MetaStep(at, before=before, mask=prefix(rows) if model.config.prefix and not before else None)
    tokens = torch.zeros(batch, rows, dtype=torch.long, device=META)
    source_ids = torch.zeros(batch, source or 1, dtype=torch.long, device=META)
    if isinstance(model, EncoderDecoder) and before:
        step.kept = remembering(model, tokens, source_ids)
    with torch.no_grad(), watch(model, keep=lambda x: None) as seen:
        if isinstance(model, Decoder):
            model(tokens, step)
        elif before:
            model.decode(tokens, step)
        else:
            model(source_ids, tokens, step)
    paths = {m: path for path, m in model.named_modules()}
    remembered = {part: kept[0] for (part, _), kept in step.kept.items()}
    states = {paths[part]: tuple(state.shape) for part, state in step.kept_states.items()}
    return Ran(dict(seen.flops), elements(seen), shapes(paths, step.stored), shapes(paths, remembered), states)


def remembering(model: EncoderDecoder, tokens: Tensor, source_ids: Tensor) -> dict[Any, Any]:
    """Return what an earlier step keeps of the encoder's rows, which a later one only reads."""
    step = MetaStep(torch.zeros_like(tokens))
    with torch.no_grad():
        model(source_ids, tokens, step)
    return step.kept


def elements(seen: Watch) -> dict[str, int]:
    """Return how many numbers elementwise ops made, by the path of the part."""
    out: dict[str, int] = {}
    for s in seen:
        if not is_product(s.op) and s.source == "executed":
            owner = s.path.rpartition(".")[0]
            out[owner] = out.get(owner, 0) + prod(s.shape)
    return out


def shapes(paths: dict[nn.Module, str], stored: dict[nn.Module, Stored]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return, by path, the shapes of one row of one request."""
    return {paths[part]: tuple(tuple(n.shape[2:]) for n in new) for part, new in stored.items()}
