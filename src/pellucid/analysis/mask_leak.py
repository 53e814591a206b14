"""What a mask lets through: the weight on later tokens, and what a later token changes in an earlier row."""

from collections.abc import Sequence

import torch

from pellucid.analysis.rows import largest_gap, on_future
from pellucid.api.model import Model
from pellucid.runs.answers import visible
from pellucid.tracing import Trace


def future_shares(run: Trace) -> list[float]:
    """Return the share of the first row that lies on later tokens, for each head of each block of a run."""
    return [share for s in run if s.path.endswith(".attn.pattern") and s.step == 0 for share in on_future(s.value)]


def token_names(run: Trace) -> list[str]:
    """Return the texts of a prompt's tokens."""
    return [visible(p) for p in run.runner.tokenizer.pieces(run.ids)]


def cells(run: Trace) -> tuple[str, list[str], list[list[float | None]]]:
    """Return the path of block 0's pattern, the names of its tokens, and head 0's weights."""
    first = next(s for s in run if s.path.endswith(".attn.pattern"))
    return first.path, token_names(run), first.value[0, 0].tolist()


def replaced(ids: Sequence[int]) -> list[int]:
    """Return ids with another one in the place of the last."""
    return [*ids[:-1], ids[0] if ids[-1] != ids[0] else ids[-1] ^ 1]


def row_gap(model: Model, a: Sequence[int], b: Sequence[int]) -> float:
    """Return the largest difference of a logit of the first row between two texts that differ in their last token."""
    first, second = model(torch.tensor([list(a), list(b)], device=model.device))[:, 0]
    return largest_gap(first, second)
