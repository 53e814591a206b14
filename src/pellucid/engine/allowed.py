"""The tokens that may come next: those of a request's constraint, and no stop before its least number of new tokens."""

from collections.abc import Mapping
from collections.abc import Sequence as Tokens

import torch
from torch import Tensor

from pellucid.engine.grammar import compute_masks
from pellucid.engine.requests import Request, Sequence
from pellucid.ops.sampling.stages import top
from pellucid.ops.sampling.token_mask import TokenMask
from pellucid.watching.tap import here


def allowed(request: Request, written: Tokens[int], index: int, vocab: int) -> TokenMask | None:
    """Return the tokens that may follow these new tokens of text number `index`; None if all may.

    A constraint that allows stops alone goes before `least`.
    """
    tokens = None if request.constraint is None else request.constraint.allowed(written, index)
    if len(written) >= request.least or not request.stops:
        return tokens
    longer = (TokenMask.of(torch.ones(vocab, dtype=torch.bool)) if tokens is None else tokens).without(list(request.stops))
    return longer if tokens is None or longer else tokens


def likeliest_is_chosen(request: Request, written: Tokens[int], index: int, best: int) -> bool:
    """Return whether token `best` of the largest logit is surely the choice, so that no mask is needed. False where a watch may see one."""
    constraint = request.constraint
    if constraint is None or here.watches or not request.sampling.plain or len(written) < request.least:
        return False
    return constraint.admits(written, index, best)


def prepare_masks(chunks: Mapping[Sequence, int], logits: Mapping[Sequence, Tensor]) -> None:
    """Compute all masks that the choices of a step need at once, see `compute_masks`. chunks: the rows that ran, by text."""
    due = []
    for s, rows in chunks.items():
        if s.request.constraint is not None and s.pending == rows and not s.proposed:
            s.best = s.best or [top(logits[s][-1])]
            if not likeliest_is_chosen(s.request, s.new_tokens, s.index, s.best[0]):
                due.append((s.request.constraint, s.new_tokens, s.index))
    compute_masks(due)
