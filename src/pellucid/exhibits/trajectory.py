"""A token in training: its row of the table, step by step, and the map of the head that changes most."""

from collections.abc import Iterator

from pellucid.analysis.rows import largest_gap
from pellucid.analysis.watched_steps import PROMPT, RATE, WORDS, most_changed, on_plane, pieces_of, row_moves, watched_training
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, PlanePanel, way
from pellucid.messages import say


def show(e: Experiment) -> Iterator[Panel | Claim]:
    steps, word = int(e.number("steps")), e.text("word")
    run = watched_training(steps, word, e.on(RATE, 0.0))
    places, share = on_plane(run.rows, run.table)
    names = [str(step) for step in (0, *(s.step for s in run.steps))]
    title = say("exhibit.trajectory.way", word=word, share=share)
    yield PlanePanel(title, say("exhibit.trajectory.first"), say("exhibit.trajectory.second"), way(names, places))
    block, head = most_changed(*run.patterns)
    pieces, path = pieces_of(PROMPT), f"layers.{block}.attn.pattern"
    for when, pattern in zip((0, steps), run.patterns, strict=True):
        values = pattern[block, head].tolist()
        yield MatrixPanel(say("exhibit.trajectory.map", path=path, head=head, step=when), pieces, pieces, values, scale="share")
    moves = row_moves(run.rows)
    yield e.claim("row", min(moves) > 0, word=word, first=moves[0], last=moves[-1])
    gap = largest_gap(*(pattern[block, head] for pattern in run.patterns))
    yield e.claim("map", e.differ(gap), path=path, head=head, gap=gap)


EXHIBIT = Exhibit("trajectory", show, controls=(Control("steps", 80, (80, 160, 320)), Control("word", WORDS[0], WORDS)), own=True)
