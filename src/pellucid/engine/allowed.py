"""The tokens that may come next: those of a request's constraint, and no stop before its least number of new tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.engine.requests import Request


def allowed(request: Request, written: Sequence[int], index: int, vocab: int) -> Tensor | None:
    """Return True for each token [vocab] that may follow these new tokens of text number `index`; None if all may.

    A constraint that allows stops alone goes before `least`.
    """
    tokens = None if request.constraint is None else request.constraint.allowed(written, index)
    if len(written) >= request.least or not request.stops:
        return tokens
    longer = torch.ones(vocab, dtype=torch.bool) if tokens is None else tokens.clone()
    longer[list(request.stops)] = False
    return longer if tokens is None or bool(longer.any()) else tokens
