"""What an encoder-decoder does with its source in each step: computes it, keeps keys and values of it, reads it.

step 0   encoder, keys and values of the source, decoder
step n   decoder; the kept keys and values are read
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.tracing import Trace, watch
from pellucid.watching.records import Records, Seen

KEPT = ".cross.k", ".cross.v"


@dataclass(frozen=True)
class SourceStep:
    """The work of one step. encoder, decoder: FLOPs.  kept: bytes of keys and values of the source that the step adds.

    read: those that its cross attention reads.
    """

    encoder: int
    decoder: int
    kept: int
    read: int


def source_steps(records: Records) -> list[SourceStep]:
    """Return the work of each step of an encoder-decoder."""
    steps, read = [], 0
    for step in range(1 + max(s.step for s in records)):
        own = [s for s in records if s.step == step]
        inside = [s for s in own if s.path.startswith("encoder.")]
        kept = sum(s.value.numel() * s.dtype.itemsize for s in own if s.path.endswith(KEPT))
        read = kept or read
        steps.append(SourceStep(flops(inside), flops(own) - flops(inside), kept, read))
    return steps


def flops(records: Iterable[Seen]) -> int:
    """Return the FLOPs of records."""
    return sum(s.flops or 0 for s in records)


def encoded_again(model: Model, run: Trace) -> Records:
    """Write a run's tokens again, with the encoder and all of the target computed anew for every token."""
    source = torch.tensor([run.ids], device=model.device)
    with watch(model, only=("encoder.*", "decoder.*", "logits")) as seen:
        for n in range(len(run.new)):
            model(source, torch.tensor([[run.starts or 0, *run.new[:n]]], device=model.device))
    return seen


def logit_gap(run: Trace, again: Records) -> float:
    """Return the largest difference of a logit of a step's last row between two ways to write the same tokens."""
    return max(largest_gap(run.last_logits(n), again.all("logits")[n].value[0, -1]) for n in range(len(run.new)))


def row_gap(again: Records) -> float:
    """Return the largest difference of a number of the encoder's last rows between two of the steps that computed them."""
    rows: list[Tensor] = [s.value for s in again if s.path == source_rows(again)]
    return max(largest_gap(rows[0], other) for other in rows)


def source_rows(records: Records) -> str:
    """Return the path of the encoder's last rows."""
    return [s.path for s in records if s.step == 0 and s.path.startswith("encoder.")][-1]


def read_weights(run: Trace) -> list[list[float]]:
    """Return the weights on the source of each written token [new S], a mean over heads and blocks."""
    patterns = [s for s in run if s.path.endswith(".cross.pattern")]
    steps = [torch.stack([s.value[0, :, -1].double() for s in patterns if s.step == n]) for n in range(len(run.new))]
    return [own.mean((0, 1)).tolist() for own in steps]


def times_as_much(kept: list[SourceStep], again: list[SourceStep]) -> float:
    """Return how many times the FLOPs of one way to write a text those of another are."""
    ours, theirs = (sum(s.encoder + s.decoder for s in steps) for steps in (kept, again))
    return theirs / ours
