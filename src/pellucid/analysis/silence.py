"""Activations of the feed-forward part: their curves, how odd they are, and what they leave of the neurons."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid import ops
from pellucid.tracing import Trace

NEAR = 0.01  # a neuron below this is near 0


def places(low: float, high: float, count: int) -> list[float]:
    """Return `count` numbers at equal distances from low to high."""
    values: list[float] = torch.linspace(low, high, count, dtype=torch.float64).tolist()
    return values


def curve(act: str, at: Sequence[float]) -> list[float]:
    """Return the activation's value at each number, as the feed-forward part computes it."""
    values: list[float] = ops.gate(torch.tensor(at, dtype=torch.float64), None, act).tolist()
    return values


def gated_curve(act: str, at: Sequence[float], value: float) -> list[float]:
    """Return the activation of each number times a value, as a gated feed-forward part computes it from gate and value."""
    x = torch.tensor(at, dtype=torch.float64)
    values: list[float] = ops.gate(x, torch.full_like(x, value), act).tolist()
    return values


def bend(act: str, at: Sequence[float], opposite: Sequence[float]) -> tuple[float, float]:
    """Compare an activation at numbers x and at their opposites.

    Returns the largest |act(x) - act(-x) - x|, which is 0 for ReLU, GELU and SiLU alike, and the largest |act(x) + act(-x)|, which is 0
    for a straight line through 0 alone.
    """
    x, up, down = (torch.tensor(values, dtype=torch.float64) for values in (at, curve(act, at), curve(act, opposite)))
    return float((up - down - x).abs().max()), float((up + down).abs().max())


@dataclass(frozen=True)
class Silence:
    """The neurons of a run. of: how many.  negative: those that the activation got a number below 0 for.

    zero: exactly 0 after it.  near: not 0, and closer to it than NEAR.
    """

    of: int
    negative: int
    zero: int
    near: int


def silence(run: Trace) -> Silence:
    """Count the silent neurons of all dense feed-forward parts of a run."""
    after: list[Tensor] = [s.value for s in run if s.path.endswith(".ffn.neurons")]
    before = [run.all(s.inputs[0])[s.call].value for s in run if s.path.endswith(".ffn.neurons")]
    zero = sum(int((x == 0).sum()) for x in after)
    near = sum(int((x.abs() < NEAR).sum()) for x in after)
    return Silence(sum(x.numel() for x in after), sum(int((x < 0).sum()) for x in before), zero, near - zero)
