"""A run of training, watched: loss, what each step moves, a word's way, attention before and after, and why one weight moved."""

from collections.abc import Iterator

from pellucid.analysis.deep_or_wide import means, steps_shown
from pellucid.analysis.watched_steps import (
    RATE,
    WEIGHT,
    adds_up,
    contributions,
    fell,
    most_changed,
    on_plane,
    pieces_of,
    thousandths,
    watched_training,
)
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, MatrixPanel, Panel, PlanePanel, TablePanel, way
from pellucid.messages import say

PROMPT, SHOWN = "The capital of France is", 4
FILE = ("exhibit.learning.when", "exhibit.learning.parameters", "exhibit.learning.bytes", "exhibit.learning.hash", "exhibit.learning.moved")
WORDS = (" capital", " the", " of", " is")  # tokens of the small tokenizer
CELL = ("exhibit.learning.token", "exhibit.learning.before", "exhibit.learning.x", "exhibit.learning.delta", "exhibit.learning.product")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    steps, word = int(e.number("steps")), e.text("word")
    run = watched_training(steps, PROMPT, word, e.on(RATE, 0.0))
    losses = list(means(run.losses))
    yield LinePanel(say("exhibit.learning.loss"), say("exhibit.learning.step"), steps_shown(steps), {say("exhibit.learning.mean"): losses})
    whens = (
        say("exhibit.learning.untrained"),
        say("exhibit.learning.used"),
        say("exhibit.learning.one"),
        say("exhibit.learning.all", steps=steps),
    )
    at, parts = [s.step for s in run.steps], list(run.steps[0].changes)
    for title, sizes in (
        (say("exhibit.learning.changes"), [s.changes for s in run.steps]),
        (say("exhibit.learning.gradients"), [s.gradients for s in run.steps]),
    ):
        yield LinePanel(title, say("exhibit.learning.step"), at, {part: [size[part] for size in sizes] for part in parts})
    files = [(when, f.parameters, f.size, f.hash, f.moved) for when, f in zip(whens, run.files, strict=True)]
    yield TablePanel(say("exhibit.learning.files"), list(map(say, FILE)), files)
    columns = [say("exhibit.learning.step"), say("exhibit.learning.text", prompt=PROMPT)]
    yield TablePanel(say("exhibit.learning.texts"), columns, run.texts[::2])
    block, head = most_changed(*run.patterns)
    pieces, path = pieces_of(PROMPT), f"layers.{block}.attn.pattern"
    for when, pattern in zip((0, steps), run.patterns, strict=True):
        values = pattern[block, head].tolist()
        yield MatrixPanel(say("exhibit.learning.map", path=path, head=head, step=when), pieces, pieces, values, scale="share")
    places, share = on_plane(run.rows, run.table)
    names = [str(step) for step in (0, *at)]
    title = say("exhibit.learning.way", word=word, share=share)
    yield PlanePanel(title, say("exhibit.learning.first"), say("exhibit.learning.second"), way(names, places))
    rows, others = contributions(run.why, SHOWN)
    every = [*rows, (say("exhibit.learning.others"), "", None, None, others)]
    cell = ", ".join(map(str, run.why.cell))
    yield TablePanel(say("exhibit.learning.why", weight=WEIGHT, cell=cell, step=steps), list(map(say, CELL)), every)
    yield e.claim("falls", fell(losses), first=losses[0], last=losses[-1], steps=steps)
    least = min(run.steps[-1].changes.values())
    yield e.claim("moves", least > 0, parts=len(parts), least=least)
    first, used, one, last = run.files
    yield e.claim("forward", first.hash == used.hash != one.hash != last.hash, moved=used.moved, one=one.moved, last=last.moved)
    same = {(f.parameters, f.size) for f in run.files}
    yield e.claim("count", len(same) == 1, count=last.parameters, size=last.size)
    yield e.claim("sum", adds_up(run.why), sum=thousandths(run.why.total()), gradient=thousandths(run.why.gradient))


EXHIBIT = Exhibit("learning", show, controls=(Control("steps", 80, (80, 160, 320)), Control("word", WORDS[0], WORDS)), own=True)
