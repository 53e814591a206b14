"""What a cache does not compute again: rows and FLOPs of each step, with it and without, and which rows of earlier tokens stay."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.rows import stream
from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.tracing import Trace, watch


@dataclass(frozen=True)
class Work:
    """One forward. rows: that were computed.  logits: of the last one [V].  leaves: the rows that each block left."""

    rows: int
    flops: int
    logits: Tensor
    leaves: Sequence[Tensor]


def cached(model: Model, ids: Sequence[int]) -> list[Work]:
    """Return the work of each token of a text that is fed one by one, over the cache."""
    following = iter(ids[1:])
    run = trace(model, ids[:1], len(ids), choose=lambda logits: next(following, ids[-1]))
    return [work_of(run, step) for step in range(run.steps)]


def recomputed(model: Model, ids: Sequence[int]) -> Work:
    """Run ids from the start, with no cache."""
    run = Trace(model.name, None, list(ids), runner=model)
    with watch(model) as records, torch.no_grad():
        model(torch.tensor([list(ids)], device=model.device))
    run.seen = records.seen
    return work_of(run, 0)


def work_of(run: Trace, step: int) -> Work:
    """Return the work of a step of a run."""
    own = [s for s in run if s.step == step]
    logits = next(s.value for s in own if s.path == "logits")
    leaves = [s.value for s in stream(run)] if step == 0 else []
    rows = next(s.shape[1] for s in own if s.path == "embed")
    return Work(rows, sum(s.flops or 0 for s in own), logits[0, -1], leaves)


def apart(a: Work, b: Work) -> float:
    """Return the largest difference of the logits of two forwards' last rows."""
    return float((a.logits.double() - b.logits.double()).abs().max())


def earlier_rows(short: Work, long: Work) -> float:
    """Return the largest difference of the rows that two forwards share, over all blocks. short: of the first tokens of `long`."""
    gaps = (float((x.double() - y[:, : x.shape[1]].double()).abs().max()) for x, y in zip(short.leaves, long.leaves, strict=True))
    return max(gaps)


def bytes_of_a_row(run: Trace, paths: Sequence[str]) -> int:
    """Return the bytes that tensors of a run have of one row."""
    values: list[Tensor] = [run.all(path)[0].value for path in paths]
    return sum(x.numel() * x.element_size() // len(run.ids) for x in values)


def last_attention(run: Trace) -> str:
    """Return the path of the last block's attention."""
    return f"layers.{len(run.runner.config.layers) - 1}.attn"
