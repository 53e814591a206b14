"""Rotary positions in a run: what they turn, what they keep, and what a score depends on."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pellucid import ops
from pellucid.analysis.rows import largest_gap
from pellucid.config import Rope
from pellucid.ops.rotate import frequencies
from pellucid.tracing import Trace


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


def score_maps(run: Trace, head: int) -> Iterator[list[list[float | None]]]:
    """Yield the scores of a head of block 0 as recorded, and from queries and keys that are not turned; None where the mask hides them."""
    q, k = (run[f"layers.0.attn.{name}"].value[0].double() for name in "qk")
    scores, pattern = run["layers.0.attn.scores"], run["layers.0.attn.pattern"].value[0, head]
    bare = q[:, head] @ k[:, head * k.shape[1] // q.shape[1]].T * scores.settings["scale"]
    for made in (scores.value[0, head], bare):
        rows: list[list[float | None]] = [
            [None if p == 0 else v for v, p in zip(*row, strict=True)] for row in zip(made.tolist(), pattern.tolist(), strict=True)
        ]
        yield rows


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


def rotation(rope: Rope, position: int, pairs: int) -> list[list[float]]:
    """Return the matrix by which a row at a position is turned, of its first `pairs` pairs of channels, each pair side by side."""
    angles = position * frequencies(rope, torch.float64)[:pairs]
    blocks = torch.stack([torch.stack([angles.cos(), -angles.sin()], -1), torch.stack([angles.sin(), angles.cos()], -1)], -2)
    out: list[list[float]] = torch.block_diag(*blocks).tolist()
    return out


def hands_alike(rope: Rope, distances: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return how alike the hands of two positions so far apart are, as cosines: of the first pair, and the mean of all pairs.

    1: the hands stand alike, so that nothing tells the positions apart.
    """
    cosines = (torch.tensor(distances, dtype=torch.float64)[:, None] * frequencies(rope, torch.float64)).cos()
    return cosines[:, 0].tolist(), cosines.mean(-1).tolist()


def nearest(values: Sequence[float], distances: Sequence[int]) -> tuple[int, float]:
    """Return the distance with the greatest value, and the value."""
    best = max(range(len(values)), key=values.__getitem__)
    return distances[best], values[best]


def score_by_distance(run: Trace, rope: Rope, distances: Sequence[int]) -> list[float]:
    """Return the product of the last query and the first key of block 0's head 0 as if they stood so far apart, each turned by `rope`."""
    q, k = (run[f"layers.0.attn.{name}"].value[:, at, :1].double() for name, at in (("q", -1), ("k", 0)))
    at = torch.tensor(distances, device=q.device)[None]
    rotated = ops.rotate(q[:, None].expand(-1, len(distances), -1, -1), ops.angles(at, rope, q.dtype), rope.interleaved)
    products: list[float] = torch.einsum("bthk,bhk->t", rotated, k).tolist()
    return products


def other_base(rope: Rope, base: float) -> Rope:
    """Return rotary positions of another base, unscaled."""
    return Rope(rope.width, base, rope.interleaved)
