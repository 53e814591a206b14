"""A head's scores as one matrix between two rows: q · k = x · M · xᵀ, M = W_Q · W_Kᵀ; and how attention moves the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap, plane_of
from pellucid.api.model import Model
from pellucid.tracing import Trace


def score_matrix(run: Trace, head: int) -> Tensor:
    """Return the matrix M [D+1 D+1] of a head of block 0, in float64. Its last row and column are those of the biases."""
    attn = run.runner.module.layers[0].attn
    sides = []
    for linear, at in ((attn.q, head), (attn.k, head * attn.k.out_features // attn.q.out_features)):
        weight = linear.dense_weight().double()
        bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.double()
        rows = slice(at * attn.width, (at + 1) * attn.width)
        sides.append(torch.cat([weight[rows], bias[rows, None]], 1))
    return sides[0].T @ sides[1]


def score_gap(run: Trace, head: int, matrix: Tensor) -> float:
    """Return the largest difference between the scores of a head of block 0 and x · matrix · xᵀ, times the scale, where both exist."""
    x = run["layers.0.attn_norm"].value[0].double()
    x = torch.cat([x, x.new_ones(len(x), 1)], 1)
    scores = run["layers.0.attn.scores"]
    made, own = (x @ matrix @ x.T * scores.settings["scale"]).tril(), scores.value[0, head].double()
    return largest_gap(made, own.masked_fill(own.isinf(), 0.0).tril())


def moves(run: Trace) -> tuple[Tensor, Tensor, int]:
    """Return block 0's rows before attention and after, [T 2] each, on their first two directions, and the share in percent."""
    before = run[run["layers.0.mid"].inputs[0]].value[0].double()
    after = run["layers.0.mid"].value[0].double()
    places, share = plane_of(torch.cat([before, after]))
    first, second = places.split(len(before))
    return first, second, share


def sum_gap(run: Trace) -> float:
    """Return the largest difference between the rows after block 0's attention and the rows before it plus its output."""
    before = run[run["layers.0.mid"].inputs[0]].value.double()
    return largest_gap(run["layers.0.mid"].value, before + run["layers.0.attn"].value.double())


@dataclass(frozen=True)
class WeightedSum:
    """A head's sum of values for the last row, one token after another. places: [T+1 2], from 0 to the sum, on their first two directions.

    angles: degrees between the query and each key.  scores, weights: of each key.  share: of these directions in percent.
    gap: of the sum to the recorded one.
    """

    places: list[list[float]]
    angles: list[float]
    scores: list[float]
    weights: list[float]
    share: int
    gap: float


def weighted_sum(run: Trace, head: int, weights_of: int) -> WeightedSum:
    """Add up block 0's values by the weights of a head, for the last row. weights_of: the head whose weights are taken, `head` itself."""
    q, k, v = (run[f"layers.0.attn.{name}"].value[0].double() for name in "qkv")
    group = head * k.shape[1] // q.shape[1]
    weights = run["layers.0.attn.pattern"].value[0, weights_of, -1].double()
    parts = weights[:, None] * v[:, group]
    steps = torch.cat([parts.new_zeros(1, parts.shape[1]), parts.cumsum(0)])
    places, share = plane_of(steps)
    angles = torch.rad2deg(torch.cosine_similarity(q[-1:, head], k[:, group]).clamp(-1, 1).acos())
    scores = run["layers.0.attn.scores"].value[0, head, -1]
    gap = largest_gap(steps[-1], run["layers.0.attn.z"].value[0, -1, head])
    return WeightedSum(places.tolist(), angles.tolist(), scores.tolist(), weights.tolist(), share, gap)


def last_row(run: Trace, head: int, key: int) -> tuple[int, int, int, int]:
    """Return the index of the last row's score for a key in a head's tensor [B H T S]."""
    return 0, head, len(run.ids) - 1, key


def embedding_gap(model: Model, ids: Sequence[int]) -> float:
    """Return the largest change of a number of the embedding while a model reads these ids."""
    table = model.module.get_parameter("embed.weight")
    before = table.detach().clone()
    model(torch.tensor([list(ids)], device=model.device))
    return largest_gap(before, table)
