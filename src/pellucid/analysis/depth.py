"""Two runs by depth: the length of the stream's rows, how alike they are, and the gradient of the answer's loss, block by block.

by_depth(plain, changed, ([], changes))
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.analysis.depth_gradients import answer_of, depth_gradients
from pellucid.analysis.rows import likeness, mean_size, stream
from pellucid.nn.transformer import Decoder
from pellucid.tracing import Trace
from pellucid.watching.change import Change


@dataclass(frozen=True)
class Depth:
    """Two runs at one place of the stream, a number of each. gradient: of -log p of the first run's answer; None: it has none here."""

    path: str
    size: tuple[float, float]
    likeness: tuple[float | None, float | None]
    gradient: tuple[float | None, float | None]


def by_depth(a: Trace, b: Trace, changes: tuple[Sequence[Change], Sequence[Change]]) -> list[Depth]:
    """Measure two runs where both have a stream of decoders whose weights take gradients; nothing for others. changes: of each run."""
    runs = (a, b)
    if not all(isinstance(run.runner.module, Decoder) and run.runner.config.head for run in runs):
        return []
    if not all(p.is_floating_point() for run in runs for p in run.runner.module.parameters()):
        return []
    token = answer_of(a)
    slopes = [depth_gradients(run.runner, run.ids, token, own) for run, own in zip(runs, changes, strict=True)]
    one, two = ({s.path: s.value for s in stream(run)} for run in runs)
    return [
        Depth(
            path,
            (mean_size(one[path]), mean_size(two[path])),
            (likeness(one[path]), likeness(two[path])),
            (slopes[0].get(path), slopes[1].get(path)),
        )
        for path in one
        if path in two
    ]
