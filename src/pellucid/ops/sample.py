"""From logits to the next token."""

import torch
from torch import Tensor

from pellucid.ops.precision import wide


def probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax of logits [... V] over the whole vocabulary, in float32 at least.

    Temperature 0 puts all on the largest, the first of equals.
    """
    w = logits.to(wide(logits.dtype))
    if temperature == 0:
        return torch.nn.functional.one_hot(w.argmax(-1), w.shape[-1]).to(w.dtype)
    return ((w - w.amax(-1, keepdim=True)) / temperature).softmax(-1)  # a tiny temperature would overflow otherwise


def pick(logits: Tensor, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
    """A token for each row of logits [rows V]: the largest at temperature 0, else a draw. LongTensor [rows]."""
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial(probabilities(logits, temperature), 1, generator=generator)[:, 0]


def logprobs(logits: Tensor) -> Tensor:
    """Log of the softmax of logits [... V], in float32 at least."""
    return logits.to(wide(logits.dtype)).log_softmax(-1)
