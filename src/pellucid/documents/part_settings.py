"""Settings of a run's parts that no tensor shows: the masks of attentions, and the routing of mixtures of experts."""

from typing import Annotated, Any, TypedDict

import torch

from pellucid.batch.mask import Band, prefix
from pellucid.batch.step import Step
from pellucid.documents.definition import Constraint, Count
from pellucid.nn.moe import Moe
from pellucid.runs.kept_run import Run

Size = Annotated[int, Constraint(minimum=1)]


class MaskDocument(TypedDict):
    """The mask of one attention, by positions."""

    causal: bool
    window: Annotated[Size | None, "the last positions that are seen; null: all"]
    chunk: Annotated[Size | None, "positions of a chunk, which sees itself alone; null: none"]
    until: Annotated[Count, "keys before it are seen even by earlier queries"]
    source: Annotated[bool, "the keys are an encoder's"]
    chosen: Annotated[Size | None, "keys that an indexer leaves at most; null: no indexer"]
    around: Annotated[bool, "the window reaches as far ahead as back"]
    fill: Annotated[float | None, "the score of keys that are not seen, so that they count; null: they do not"]


class RoutingDocument(TypedDict):
    """The routing of a mixture of experts."""

    experts: Count
    chosen: Annotated[Count, "experts of the best groups, for each token"]
    groups: Count
    groups_chosen: Count
    group_best: Annotated[Count, "experts whose scores a group's score is the sum of"]
    corrected: Annotated[bool, "a correction is added to the scores before the choice"]
    shared: Annotated[Count, "width of the part that every token visits"]


def masks(run: Run) -> dict[str, MaskDocument]:
    """Return the mask of each attention by its path; an empty dict for a run without its model."""
    if run.loaded is None:
        return {}
    before = prefix(len(run.trace.ids)) if run.loaded.config.prefix else None
    step = Step(torch.empty(1, 0, dtype=torch.long), mask=before)
    return {path: mask(m, step) for path, m in run.loaded.module.named_modules() if hasattr(m, "mask")}


def mask(part: Any, step: Step) -> MaskDocument:
    """Return the mask of `part` in `step`, as data."""
    made = part.mask(step)
    band = made.allowed
    assert isinstance(band, Band)
    return {
        "causal": band.causal,
        "window": band.window,
        "chunk": band.chunk,
        "until": band.until,
        "source": bool(part.reads_source),
        "chosen": None if part.indexer is None else part.indexer.chosen,
        "around": band.around,
        "fill": made.fill,
    }


def routings(run: Run) -> dict[str, RoutingDocument]:
    """Return the routing of each mixture of experts by its path; an empty dict for a run without its model."""
    if run.loaded is None:
        return {}
    return {path: routing(m) for path, m in run.loaded.module.named_modules() if isinstance(m, Moe)}


def routing(m: Moe) -> RoutingDocument:
    """Return the routing document of `m`."""
    spec = m.spec
    return {
        "experts": spec.experts,
        "chosen": spec.chosen,
        "groups": spec.groups,
        "groups_chosen": spec.groups_chosen,
        "group_best": spec.group_best,
        "corrected": spec.corrected,
        "shared": spec.shared,
    }
