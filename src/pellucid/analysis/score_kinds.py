"""Two ways to score a query and a key, on the same rows: q · k, and w · tanh(q + k) with the same projections."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pellucid.analysis.independence import ATTENTION, step_of
from pellucid.api.model import Model
from pellucid.nn.additive import AdditiveAttention
from pellucid.ops.kinds import is_product
from pellucid.tracing import watch

TABLES = ("pairs", "hidden", "scores")


@dataclass(frozen=True, eq=False)
class ScoreWork:
    """What one attention did with rows. given, made: shapes.  flops: of its products.  elementwise: numbers that its sums and tanh make.

    pair: numbers that it makes of a query and a key before their weight.  kept: bytes of these for all pairs.  scores [B H T S].
    """

    given: list[int]
    made: list[int]
    flops: int
    elementwise: int
    pair: int
    kept: int
    scores: Tensor


def dot(model: Model) -> nn.Module:
    """Return the attention of the first block."""
    return model.module.get_submodule(ATTENTION)


def additive(model: Model, bent: bool = True) -> nn.Module:
    """Return an additive attention with the projections of the first block's. bent: False leaves out tanh."""
    return AdditiveAttention(dot(model), bent)  # type: ignore[arg-type]


def score_work(layer: nn.Module, x: Tensor) -> ScoreWork:
    """Run an attention on rows x [1 T D], and count what it did."""
    with watch(layer) as seen:
        out = layer(x, step_of(x))
    tables = [s for s in seen if s.path in TABLES]
    scores = next(s.value for s in tables if s.path == "scores")
    single = [s for s in tables if not is_product(s.op)]
    kept = sum(s.value.numel() * s.dtype.itemsize for s in tables)
    pair = sum(s.value.numel() for s in tables) // scores.numel()
    flops, elementwise = sum(s.flops or 0 for s in seen), sum(s.value.numel() for s in single)
    return ScoreWork([*x.shape], [*out.shape], flops, elementwise, pair, kept, scores)


def kept_by_length(layer: nn.Module, x: Tensor, lengths: Sequence[int]) -> list[int]:
    """Return the bytes that an attention keeps of all pairs, for texts of these lengths made of repeated rows x [1 T D]."""
    return [score_work(layer, rows_of_length(x, n)).kept for n in lengths]


def rows_of_length(x: Tensor, length: int) -> Tensor:
    """Return rows x [1 T D] again and again, [1 length D]."""
    return x.repeat(1, length, 1)[:, :length]


def score(layer: nn.Module, x: Tensor) -> Tensor:
    """Run an attention on rows x [1 T D] and return its output."""
    return layer(x, step_of(x))  # type: ignore[no-any-return]


def query_gap(work: ScoreWork) -> float:
    """Return how much the scores' differences between keys depend on the query, between the last two rows of each head."""
    a, b = (work.scores[0, :, row, :-1].double() for row in (-1, -2))
    return float(((a - a[:, :1]) - (b - b[:, :1])).abs().max())
