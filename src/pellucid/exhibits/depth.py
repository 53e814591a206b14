"""Deep or wide: three shapes of the same number of parameters, trained on the same batches."""

from collections.abc import Iterator

from pellucid.analysis.deep_or_wide import apart, steps_shown, trained_shape
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

SHAPES = ((1, 64), (3, 40), (6, 24))  # blocks, width
NEAR = 0.01
COLUMNS = ("exhibit.depth.blocks", "exhibit.depth.width", "exhibit.depth.neurons", "exhibit.depth.parameters", "exhibit.depth.loss")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    steps = int(e.number("steps"))
    shapes = [trained_shape(blocks, width, steps, e.on(True, False)) for blocks, width in SHAPES]
    rows = [(s.blocks, s.width, s.neurons, s.parameters, s.losses[-1]) for s in shapes]
    yield TablePanel(say("exhibit.depth.table", steps=steps), list(map(say, COLUMNS)), rows)
    lines = {say("exhibit.depth.shape", blocks=s.blocks, width=s.width): s.losses for s in shapes}
    yield LinePanel(say("exhibit.depth.lines"), say("exhibit.depth.step"), steps_shown(steps), lines)
    share = apart([s.parameters for s in shapes])
    least, most = min(s.parameters for s in shapes), max(s.parameters for s in shapes)
    yield e.claim("same", share < NEAR, least=least, most=most)
    best, worst = min(shapes, key=lambda s: s.losses[-1]), max(shapes, key=lambda s: s.losses[-1])
    shape, other = (say("exhibit.depth.shape", blocks=s.blocks, width=s.width) for s in (best, worst))
    numbers: dict[str, float | str] = {"best": best.losses[-1], "shape": shape, "worst": worst.losses[-1], "other": other}
    yield e.claim("shape", best.losses[-1] < worst.losses[-1] < worst.losses[0], steps=steps, **numbers)


EXHIBIT = Exhibit("depth", show, controls=(Control("steps", 80, (40, 80, 160)),), own=True)
