"""Why one weight moved: its gradient token by token, the parts of its step, and the gradient of every part of the model."""

from collections.abc import Iterator

from pellucid.analysis.watched_steps import (
    RATE,
    WEIGHT,
    WORDS,
    adds_up,
    contributions,
    moved_as_computed,
    step_parts,
    thousandths,
    watched_training,
)
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import BarPanel, LinePanel, Panel, TablePanel
from pellucid.messages import say

SHOWN = 6  # tokens that count most
COLUMNS = ("exhibit.gradient.token", "exhibit.gradient.before", "exhibit.gradient.x", "exhibit.gradient.delta", "exhibit.gradient.product")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    steps = int(e.number("steps"))
    run = watched_training(steps, WORDS[0], e.on(RATE, 0.0))
    rows, others = contributions(run.why, SHOWN)
    every = [*rows, (say("exhibit.gradient.others"), "", None, None, others)]
    cell = ", ".join(map(str, run.why.cell))
    yield TablePanel(say("exhibit.gradient.why", weight=WEIGHT, cell=cell, step=steps), list(map(say, COLUMNS)), every)
    parts = step_parts(run.why)
    names = {
        "gradient": say("exhibit.gradient.own"),
        "momentum": say("exhibit.gradient.momentum"),
        "decay": say("exhibit.gradient.decay"),
    }
    yield BarPanel(say("exhibit.gradient.parts"), {names[part]: size for part, size in parts.items()})
    sizes = {part: [s.gradients[part] for s in run.steps] for part in run.steps[0].gradients}
    yield LinePanel(say("exhibit.gradient.sizes"), say("exhibit.gradient.step"), [s.step for s in run.steps], sizes)
    tokens, total = len(run.why.tokens), thousandths(run.why.total())
    yield e.claim("sum", adds_up(run.why), tokens=tokens, sum=total, gradient=thousandths(run.why.gradient))
    yield e.claim("moved", moved_as_computed(run), moved=thousandths(run.moved), **parts)


EXHIBIT = Exhibit("gradient", show, controls=(Control("steps", 80, (80, 160, 320)),), own=True)
