"""One step of training, recorded while it is taken: every tensor with its gradient, and what the step did to each parameter.

A recorded step is the step: watching changes no bit of it.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pellucid.batch.step import Step
from pellucid.ops import wide
from pellucid.tracing import Trace, Writer, fed, watch
from pellucid.training.balance import mixtures
from pellucid.training.loop import TrainingRun
from pellucid.training.objectives import Batch
from pellucid.training.targets import real_rows
from pellucid.watching.records import Records


class ParameterStep(NamedTuple):
    """A step's effect on one parameter. norm: before the step.  gradient: its norm, before all were clipped.  update: norm of the change.

    ratio: update / norm, None where the norm is 0.  angle: in degrees, to the change by the last recorded step; None without one, or
    where either change is 0.
    """

    norm: float
    gradient: float
    update: float
    ratio: float | None
    angle: float | None


@dataclass(repr=False)
class RecordedStep(Trace):
    """The records of one step of training; a step of the trace is a forward of the training step, one for each micro-batch.

    number: the training step, from 1.  entry: its log entry.  documents: the numbers of each forward's documents.  parameters: what the
    step did to each, by path.  updates: the change of each.  tokens: the embedding's row of each, prompts: their traces, both after it.
    loads: of each layer of experts, by path, how often each was chosen for a token that carries loss.
    """

    number: int = 0
    entry: dict[str, Any] = field(default_factory=dict)
    documents: list[list[int]] = field(default_factory=list)
    parameters: dict[str, ParameterStep] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    prompts: list[Trace] = field(default_factory=list)
    loads: dict[str, list[int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RecordedStep({self.model!r}, {self.number}, {len(self.seen)} tensors, {len(self.parameters)} parameters)"

    def save(self, folder: str | Path) -> None:
        """Write the records, with gradients and the ids of each forward, as a trace into a folder of its own."""
        writer = Writer(folder, model=self.model)
        writer.fed = lambda: self.fed.get(writer.step, [])
        for s in self.seen:
            writer(s)
        writer.close()


def record_step(
    run: TrainingRun,
    numbers: list[int],
    name: str,
    only: str | Iterable[str] = "*",
    gradients: bool = True,
    last: dict[str, Tensor] | None = None,
) -> RecordedStep:
    """Take the step of `run` on the documents `numbers`, and record it. name: of the model.  only: paths of tensors to record.

    last: the updates of the step that was recorded before, for the angles.
    """
    parts = [run.criterion.texts(part) for part in run.parts(numbers)]
    experts = {f"{path}.chosen": m.spec.experts for path, m in mixtures(run.model).items()}
    with (
        watch(run.model, only=only, grad=gradients) if only else nullcontext(Records()) as seen,
        watch(run.model, only=list(experts)) if experts else nullcontext(Records()) as chosen,
        run.recompute.off() if only and gradients else nullcontext(),
    ):
        differentiated = run.backward(numbers)
    for s in seen:
        s.value = s.value.detach()
    trained, pulled = dict(run.weights.named_parameters()), run.weights.gradients()
    before = {path: p.detach().clone() for path, p in trained.items()}
    norms = {path: 0.0 if (g := pulled.get(path)) is None else float(g.to(wide(g.dtype)).norm()) for path in trained}
    entry = run.update(differentiated)
    updates = {path: p.detach() - before[path] for path, p in trained.items()}
    parameters = {
        path: parameter_step(before[path], norms[path], update, None if last is None else last.get(path))
        for path, update in updates.items()
    }
    recorded = RecordedStep(name, seen=seen.seen, aliases=seen.aliases)
    recorded.fed = {i: given(batch) for i, batch in enumerate(differentiated.batches)}
    recorded.number, recorded.entry, recorded.documents = run.step, entry, parts
    recorded.parameters, recorded.updates = parameters, updates
    recorded.loads = {path.removesuffix(".chosen"): loads_of(chosen, path, n, differentiated.batches) for path, n in experts.items()}
    return recorded


def loads_of(chosen: Records, path: str, experts: int, batches: list[Batch]) -> list[int]:
    """Return how often each expert was chosen in the forwards of a step's batches, for rows that carry loss."""
    load = torch.zeros(experts, dtype=torch.long)
    for seen, batch in zip(chosen.all(path), batches, strict=True):
        load += torch.bincount(seen.value[real_rows(batch, path)].flatten().cpu(), minlength=experts)
    return [int(n) for n in load]


def given(batch: Batch) -> list[dict[str, Any]]:
    """Return the ids of a batch as JSON, an entry for each of its texts."""
    return fed(tuple(x for x in batch.inputs if isinstance(x, Tensor)), tuple(x for x in batch.inputs if isinstance(x, Step)))


def parameter_step(before: Tensor, gradient: float, update: Tensor, last: Tensor | None) -> ParameterStep:
    """Return a step's effect on a parameter. last: its change by the last recorded step."""
    norm, size = float(before.norm()), float(update.norm())
    angle = None
    if last is not None and size and (other := float(last.norm())):
        cosine = float((update.double() * last.double()).sum()) / (size * other)
        angle = float(torch.rad2deg(torch.acos(torch.tensor(min(1.0, max(-1.0, cosine)), dtype=torch.float64))))
    return ParameterStep(norm, gradient, size, size / norm if norm else None, angle)
