"""Prompts of unequal length in one batch: the rows that are computed for them, and the logits of each prompt's last token.

engine      a b c d e f g h i                  every row is a token
padded      · · · · a    · b c d e    f g h i j    rows of equal length; "·" is hidden by a mask
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.runs.answers import visible
from pellucid.tracing import watch
from pellucid.watching.records import Records

PAD = "·"
ROWS = "layers.0.ffn"  # any tensor with a row for each computed one

Prompts = Sequence[Sequence[int]]
Item = TypeVar("Item")
Pad = TypeVar("Pad")


@dataclass(frozen=True, eq=False)
class BatchRun:
    """One way to run prompts. rows: that went through the blocks.  logits: of each prompt's last token [N V]."""

    rows: int
    logits: Tensor


def in_engine(model: Model, prompts: Prompts) -> BatchRun:
    """Run prompts as one batch of the engine."""
    with watch(model, only=(ROWS, "logits")) as seen:
        list(model.stream(prompts, 1))
    own: dict[Any, Tensor] = {s.request: s.value[0, -1] for s in seen.all("logits")}
    return BatchRun(computed(seen), torch.stack([own[n] for n in sorted(own)]))


def alone(model: Model, prompts: Prompts) -> BatchRun:
    """Run each prompt by itself."""
    with watch(model, only=ROWS) as seen:
        logits = [model(torch.tensor([list(own)], device=model.device), rows=-1)[0, 0] for own in prompts]
    return BatchRun(computed(seen), torch.stack(logits))


def padded(model: Model, prompts: Prompts, masked: bool = True) -> BatchRun:
    """Run prompts as rows of the longest one's length, padded on the left. masked: False lets padding count as tokens."""
    ids = torch.tensor(left_padded(prompts, 0), device=model.device)
    real = torch.tensor(left_padded([[1] * len(own) for own in prompts], 0), device=model.device)
    with watch(model, only=ROWS) as seen:
        logits = model(ids, padding=real if masked else None, rows=-1)[:, 0]
    return BatchRun(computed(seen), logits)


def padded_pieces(model: Model, prompts: Prompts) -> list[list[str]]:
    """Return each prompt's line of the padded batch: its pieces, after a "·" for each place of padding."""
    return left_padded([[visible(p) for p in model.tokenizer.pieces(own)] for own in prompts], PAD)


def left_padded(rows: Sequence[Sequence[Item]], pad: Pad) -> list[list[Item | Pad]]:
    """Return rows of the longest one's length: each after `pad` for every place that it lacks."""
    longest = max(map(len, rows))
    return [[*[pad] * (longest - len(row)), *row] for row in rows]


def computed(seen: Records) -> int:
    """Return the number of rows that went through the first block."""
    return sum(s.shape[0] * s.shape[1] for s in seen if s.path == ROWS)


def present(prompts: Prompts) -> int:
    """Return the number of tokens of all prompts."""
    return sum(map(len, prompts))


def window_rows(model: Model, prompts: Prompts) -> tuple[int, int]:
    """Return the most tokens that a model was made for, and the rows if each prompt had as many."""
    window = model.config.positions or model.config.context or max(map(len, prompts))
    return window, window * len(prompts)


def apart(a: BatchRun, b: BatchRun) -> float:
    """Return the largest difference of a logit."""
    return largest_gap(a.logits, b.logits)
