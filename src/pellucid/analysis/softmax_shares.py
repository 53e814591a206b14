"""The softmax taken apart: a logit, its exponential and its share, and what a temperature, a constant or a bias does to the shares."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pellucid.analysis.rows import entropy, largest_gap
from pellucid.ops.sampling.stages import probabilities
from pellucid.tracing import Trace


@dataclass(frozen=True)
class TokenShare:
    """One token of a softmax. below: the logit less the largest one.  power: e to that.  share: of all powers."""

    id: int
    logit: float
    below: float
    power: float
    share: float


@dataclass(frozen=True)
class SoftmaxTable:
    """The likeliest tokens of a row of logits [V]. total: the sum of the powers of all V.  gap: of the shares to the model's own."""

    shares: Sequence[TokenShare]
    total: float
    gap: float


def softmax_table(logits: Tensor, powers_of: Tensor, best: int) -> SoftmaxTable:
    """Compute the `best` likeliest shares of logits [V] by exponentials and their sum, in float64, and compare all with the model's own.

    powers_of: the logits [V] whose exponentials are taken, `logits` itself in a softmax.
    """
    x = powers_of.double()
    below = x - x.max()
    powers = below.exp()
    total = powers.sum()
    shares = powers / total
    ids = logits.topk(best).indices.tolist()
    rows = [TokenShare(i, float(x[i]), float(below[i]), float(powers[i]), float(shares[i])) for i in ids]
    return SoftmaxTable(rows, float(total), largest_gap(probabilities(logits), shares))


def logit_cell(run: Trace, id: int) -> tuple[int, int, int]:
    """Return the index of a token's logit in the last row of a run's logits."""
    return 0, len(run.ids) - 1, id


def entropy_at(logits: Tensor, temperature: float) -> float:
    """Return the entropy of the next token in bits, of logits [V] at a temperature."""
    return entropy(probabilities(logits.double(), temperature)[None, None, None])[0]


def order_kept(logits: Tensor, temperature: float) -> bool:
    """True if a temperature leaves the order of the shares of logits [V] as it is: none passes another."""
    shares = probabilities(logits.double(), temperature)[logits.double().argsort(descending=True, stable=True)]
    return bool((shares.diff() <= 0).all())


def shifted_gap(logits: Tensor, constant: float) -> float:
    """Return the largest difference of a share after a constant is added to every one of the logits [V]."""
    x = logits.double()
    return largest_gap(probabilities(x), probabilities(x + constant))


def share_gap(logits: Tensor, others: Tensor) -> float:
    """Return the largest difference of a share by two rows of logits [V]."""
    return largest_gap(probabilities(logits.double()), probabilities(others.double()))
