"""Which rows of a batch carry loss: those of the model itself, and those of a module that predicts further ahead."""

import re

import torch
from torch import Tensor

from pellucid.training.objectives import IGNORED, Batch

MODULE = re.compile(r"multi_token\.(\d+)\.")


def ahead(batch: Batch, k: int) -> tuple[Tensor, Tensor]:
    """Return the token k places on of each row [B T] and the target k + 1 places on, within the row's document.

    A document's last k rows have no such target: they are IGNORED, and the document's last row is read.
    """
    tokens, step = batch.inputs
    at = torch.arange(tokens.shape[1])
    stops = torch.full_like(at, len(at))
    for span in step.spans:
        stops[span.start : span.stop] = span.stop
    outside = at + k >= stops
    at = torch.minimum(at + k, stops - 1)
    return tokens[:, at], batch.targets[:, at].masked_fill(outside, IGNORED)


def real_rows(batch: Batch, path: str) -> Tensor:
    """Return which rows [B T] of a batch carry loss for the part of the model at `path`."""
    module = MODULE.match(path)
    targets = batch.targets if module is None else ahead(batch, int(module[1]) + 1)[1]
    return targets != IGNORED
