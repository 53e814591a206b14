"""The learning rate of a step: a warm-up, then down by the schedule of the recipe."""

import math
from collections.abc import Callable

from pellucid.training.recipe import TrainSettings


def learning_rate(step: int, s: TrainSettings) -> float:
    """Return the rate of a step: a linear warm-up of `warmup` steps, then by the schedule down to `floor` of the full rate."""
    if step < s.warmup:
        return s.learning_rate * (step + 1) / s.warmup
    part = (step - s.warmup) / max(1, s.steps - s.warmup)
    return s.learning_rate * (s.floor + (1 - s.floor) * SHAPES[s.schedule](part, step, s))


SHAPES: dict[str, Callable[[float, int, TrainSettings], float]] = {
    "cosine": lambda part, step, s: 0.5 * (1 + math.cos(math.pi * part)),
    "linear": lambda part, step, s: 1 - part,
    "constant": lambda part, step, s: 1.0,
    "wsd": lambda part, step, s: min(1.0, (s.steps - step) / (s.steps - s.stable)),  # warm-up, stable, decay: arXiv 2404.06395
}
"""From 1 to 0 over the steps after the warm-up. part: the share of them that is over."""
