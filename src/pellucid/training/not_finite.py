"""Where a step of training first has a number that is not finite: its forwards run again, watched, then its backward passes.

The first tensor is the earliest that a forward makes, or the latest whose gradient is broken, since gradients come from the end.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from pellucid.training.balance import balance_of
from pellucid.training.objectives import Batch
from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch, watch

if TYPE_CHECKING:
    from pellucid.training.loop import TrainingRun


class BrokenTensor(NamedTuple):
    """The first tensor of a step with a number that is not finite. document: of the row that has it, None if that is not known."""

    path: str
    document: int | None


def first_broken(run: "TrainingRun", numbers: list[int], batches: list[Batch], gradient: bool) -> BrokenTensor | None:
    """Return the first broken tensor of a step on the documents `numbers`, None if there is none. gradient: of its backward passes.

    Changes no weight and no count of experts. Only the first broken tensor of a forward is kept.
    """
    parts, known = run.parts(numbers), dict[str, Tensor]()

    def keep(x: Tensor) -> Tensor | None:
        if known or not x.is_floating_point() or bool(x.isfinite().all()):
            return None
        return known.setdefault("first", x.detach())

    with watch(run.model, keep=None if gradient else keep, grad=gradient) as seen, run.recompute.off(), run.ranks.computing():
        for i, part in enumerate(run.forwards(numbers, batches, balance_of(run.model, run.s))):
            if gradient:
                part.differentiated.backward()
            broken = first_of(seen, gradient)
            if run.ranks.any_beside(broken is not None):  # they stop together, since the next forward exchanges
                if broken is None:
                    return None
                s, at = broken
                if i >= len(batches):  # a forward of another rank's weights, which counts nothing
                    return BrokenTensor(s.path, None)
                text = text_of(s, at, batches[i])
                texts = run.criterion.texts(parts[i])
                return BrokenTensor(s.path, texts[text] if text is not None and text < len(texts) else None)
            seen.seen.clear()
    return None


def first_of(seen: Watch, gradient: bool) -> tuple[Seen, list[int]] | None:
    """Return the first record of one forward that is broken, and the index of its first broken number."""
    for s in reversed(seen.seen) if gradient else seen.seen:
        x = s.grad if gradient else s.value
        if isinstance(x, Tensor) and x.is_floating_point() and not bool(x.isfinite().all()):
            return s, [int(i) for i in (~x.isfinite()).nonzero()[0]]
    return None


def text_of(s: Seen, at: list[int], batch: Batch) -> int | None:
    """Return the number of the text in its batch that a number of a record belongs to, None if the record's axes do not say."""
    if isinstance(s.request, int):  # of texts that share a row, each has records of its own
        return s.request
    letters = s.dims.split()
    if letters[0] == "N" and s.rows is not None:  # a routed row
        return int(s.rows[at[0]]) // batch.targets.shape[1]
    return at[0] if letters[0] == "B" else None
