"""Proof of a run without training it twice: random stretches between its kept states are taken again, and must end in the same bits."""

import random
from dataclasses import dataclass
from itertools import pairwise

from pellucid.errors import PellucidError
from pellucid.training.replay import Replay, state_at
from pellucid.training.saves import check_state


@dataclass(frozen=True)
class Stretch:
    """The steps after one kept state up to the next. fault: what was not as it should be, None if all was."""

    first: int
    last: int
    fault: str | None


def verify_stretches(run: Replay, count: int, seed: int | None = None) -> list[Stretch]:
    """Check every kept state by its manifest, and take `count` random stretches between states again; all if there are fewer.

    What is wrong with one stretch does not keep the others from being taken. A TrainError if the data or the machine are not the run's.
    """
    run.built  # noqa: B018  the data are read before the first stretch
    out, kept = list[Stretch](), run.states
    for step in kept:
        try:
            check_state(state_at(run.folder, step))
        except (PellucidError, OSError) as fault:
            out.append(Stretch(step, step, str(fault)))
    damaged = {stretch.last for stretch in out}
    starts = [*([] if run.about.since else [0]), *(step for step in kept if step >= run.about.since)]
    known = [pair for pair in pairwise(starts) if not damaged & set(pair)]
    for first, last in sorted(random.Random(seed).sample(known, min(count, len(known)))):
        try:
            run.check_stretch(first, last)
        except PellucidError as fault:
            out.append(Stretch(first, last, str(fault)))
        else:
            out.append(Stretch(first, last, None))
    return out
