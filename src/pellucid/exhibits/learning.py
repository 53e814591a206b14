"""A run of training, watched: loss, what each step moves, the weights as a file, and what the model writes on the way."""

from collections.abc import Iterator

from pellucid.analysis.deep_or_wide import means, steps_shown
from pellucid.analysis.watched_steps import PROMPT, RATE, WORDS, fell, watched_training
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

FILE = ("exhibit.learning.when", "exhibit.learning.parameters", "exhibit.learning.bytes", "exhibit.learning.hash", "exhibit.learning.moved")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    steps = int(e.number("steps"))
    run = watched_training(steps, WORDS[0], e.on(RATE, 0.0))
    losses = list(means(run.losses))
    yield LinePanel(say("exhibit.learning.loss"), say("exhibit.learning.step"), steps_shown(steps), {say("exhibit.learning.mean"): losses})
    whens = (
        say("exhibit.learning.untrained"),
        say("exhibit.learning.used"),
        say("exhibit.learning.one"),
        say("exhibit.learning.all", steps=steps),
    )
    at, parts = [s.step for s in run.steps], list(run.steps[0].changes)
    changes = {part: [s.changes[part] for s in run.steps] for part in parts}
    yield LinePanel(say("exhibit.learning.changes"), say("exhibit.learning.step"), at, changes)
    files = [(when, f.parameters, f.size, f.hash, f.moved) for when, f in zip(whens, run.files, strict=True)]
    yield TablePanel(say("exhibit.learning.files"), list(map(say, FILE)), files)
    columns = [say("exhibit.learning.step"), say("exhibit.learning.text", prompt=PROMPT)]
    yield TablePanel(say("exhibit.learning.texts"), columns, run.texts[::2])
    yield e.claim("falls", fell(losses), first=losses[0], last=losses[-1], steps=steps)
    least = min(run.steps[-1].changes.values())
    yield e.claim("moves", least > 0, parts=len(parts), least=least)
    first, used, one, last = run.files
    yield e.claim("forward", first.hash == used.hash != one.hash != last.hash, moved=used.moved, one=one.moved, last=last.moved)
    same = {(f.parameters, f.size) for f in run.files}
    yield e.claim("count", len(same) == 1, count=last.parameters, size=last.size)


EXHIBIT = Exhibit("learning", show, controls=(Control("steps", 80, (80, 160, 320)),), own=True)
