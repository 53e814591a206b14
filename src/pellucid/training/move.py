"""How far AdamW moves one weight in a step, as a sum of three parts (arXiv 1711.05101).

    m ← β₁·m + (1 − β₁)·c·g        v ← β₂·v + (1 − β₂)·(c·g)²        c: the clip factor of the step's gradients
    w ← w − η·λ·w − η·m̂ / (√v̂ + ε)        m̂ = m / (1 − β₁ᵗ)        v̂ = v / (1 − β₂ᵗ)

m̂ is a sum of this step's gradient and what earlier steps left, so the move is, too. Both are over the same √v̂, which has this step in it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """The parts of a weight's change in one step. gradient: this step's.  momentum: that of earlier steps.  decay: the weight's own.

    clip: the factor by which the step's gradients were clipped.  denominator: √v̂ + ε.
    """

    gradient: float
    momentum: float
    decay: float
    clip: float
    denominator: float

    def total(self) -> float:
        """Return the weight after the step less the weight before it."""
        return self.gradient + self.momentum + self.decay


def adamw_move(
    weight: float,
    gradient: float,
    first: float,
    second: float,
    steps: int,
    *,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    clip: float = 1.0,
) -> Move:
    """Return the parts of a weight's change by a gradient that is not clipped yet.

    first, second: the weight's moments m and v before the step.  steps: those taken before.  decay: λ.  clip: from `clip_factor`.
    """
    (beta1, beta2), t, clipped = betas, steps + 1, clip * gradient
    variance = (beta2 * second + (1 - beta2) * clipped**2) / (1 - beta2**t)
    denominator = math.sqrt(variance) + eps
    scale = -rate / ((1 - beta1**t) * denominator)
    return Move(scale * (1 - beta1) * clipped, scale * beta1 * first, -rate * decay * weight, clip, denominator)


def clip_factor(norm: float, most: float) -> float:
    """Return the factor that `clip_grad_norm_` gives gradients of this norm, so that their norm is `most` at most."""
    return min(1.0, most / (norm + 1e-6))
