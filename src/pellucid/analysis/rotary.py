"""Rotary positions in a run: what they turn, what they keep, and what a score depends on."""

import math

import torch
from torch import Tensor

from pellucid import ops
from pellucid.analysis.rows import largest_gap
from pellucid.config import AnyAttention, Config, Rope
from pellucid.ops.rotate import frequencies
from pellucid.tracing import Trace


def own_keys(attn: AnyAttention) -> bool:
    """True for attention with rotary keys of its heads, not scaled by length, and without a norm of its own."""
    rope = getattr(attn, "rope", None)
    return attn.kv_heads is not None and rope is not None and not rope.by_length and not getattr(attn, "qk_norm", None)


def rotary(cfg: Config) -> bool:
    """True for a decoder whose every block has rotary positions in attention of one kind, with no other positions or scalings by length."""
    specs = [layer.attn for layer in cfg.layers]
    alone = cfg.encoder is None and cfg.head and cfg.positions is None
    return alone and all(own_keys(s) for s in specs)


def rope_of(run: Trace) -> Rope:
    """Return the rotary positions of block 0."""
    rope: Rope = run.runner.config.layers[0].attn.rope
    return rope


def scores_at(run: Trace, query: int, key: int) -> Tensor:
    """Return the products of block 0's queries and keys [H T S], each position of a query moved on by `query`, of a key by `key`."""
    rope, rotated = rope_of(run), []
    for name, by in (("q", query), ("k", key)):
        x = run[f"layers.0.attn.{name}"].value.double()
        at = torch.arange(x.shape[1], device=x.device)[None] + by
        rotated.append(ops.rotate(x, ops.angles(at, rope, x.dtype), rope.interleaved)[0])
    q, k = rotated
    return torch.einsum("thk,shk->hts", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))


def shift_gap(run: Trace, query: int, key: int) -> float:
    """Return the largest change of a score of block 0 if queries and keys move on by these numbers of tokens."""
    return largest_gap(scores_at(run, 0, 0), scores_at(run, query, key))


def length_gap(run: Trace) -> float:
    """Return the largest change of the length of a query or a key by its rotation, over all blocks."""
    pairs = [(run[s.path.removesuffix("_rot")].value, s.value) for s in run if s.path.endswith(("q_rot", "k_rot"))]
    return max(largest_gap(a.double().norm(dim=-1), b.double().norm(dim=-1)) for a, b in pairs)


def rotations(run: Trace) -> tuple[int, int, int]:
    """Return the numbers of queries, of keys and of other tensors that rotary positions turned in a run."""
    names = [s.path.rpartition(".")[2] for s in run if s.op == "rotate"]
    queries, keys = names.count("q_rot"), names.count("k_rot")
    return queries, keys, len(names) - queries - keys


def wavelengths(rope: Rope) -> list[float]:
    """Return the number of tokens in a full turn of each pair."""
    turns: list[float] = (2 * math.pi / frequencies(rope, torch.float64)).tolist()
    return turns
