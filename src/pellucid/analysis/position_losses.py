"""The losses of a text: of all its positions in one pass, and of each in a pass of its own that ends there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.ops.sampling.stages import logprobs


@dataclass(frozen=True)
class Losses:
    """The loss of every token after the first, in nats. rows: of tokens that were computed for them, over all passes."""

    values: Sequence[float]
    passes: int
    rows: int


def in_one_pass(model: Model, ids: Sequence[int], causal: bool = True) -> Losses:
    """Compute the loss of each of ids[1:] in one pass over ids[:-1]. causal: False lets every position see all of them."""
    given = torch.tensor([ids[:-1]], device=model.device)
    logits = model(given, prefix=0 if causal else given.shape[1])[0]
    return Losses(of_targets(logits, ids[1:]).tolist(), 1, given.shape[1])


def one_by_one(model: Model, ids: Sequence[int]) -> Losses:
    """Compute the loss of each of ids[1:] in a pass over the tokens before it alone."""
    ends = range(1, len(ids))
    last = [model(torch.tensor([ids[:end]], device=model.device), prefix=0)[0, -1] for end in ends]
    return Losses(of_targets(torch.stack(last), ids[1:]).tolist(), len(ends), sum(ends))


def of_targets(logits: Tensor, targets: Sequence[int]) -> Tensor:
    """Return the loss of each row of logits [T V] for its target."""
    return -logprobs(logits).gather(-1, torch.tensor(targets, device=logits.device)[:, None])[:, 0]


def apart(a: Losses, b: Losses) -> float:
    """Return the largest difference of a loss."""
    return max(abs(x - y) for x, y in zip(a.values, b.values, strict=True))
