"""A word is moved: it enters two texts by one row of the table, and attention takes it to two places."""

from collections.abc import Iterator

from pellucid.analysis.context_shift import cosines, on_plane, table_gap, table_hash, word_row, word_rows
from pellucid.analysis.rows import largest_gap, stream
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, PlanePanel, Point, TablePanel
from pellucid.messages import say

FIRST, SECOND, WORD = "The capital of Singapore is", "The city of Singapore is the capital of", "Singapore"
OFF = ("layers.*.attn = 0",)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompts, word = (e.text("first"), e.text("second")), e.text("word")
    before = table_hash(e.model)
    runs, bare = ([e.trace(p, changes=changes) for p in prompts] for changes in ((), OFF))
    (a, b), (x, y) = ([word_rows(run, word) for run in own] for own in (runs, bare))
    near, alone = cosines(a, b), cosines(x, y)
    *paths, share = on_plane(a, b)
    ways = [
        (f"{n}.{at}", one, after)
        for n, own in enumerate(paths, 1)
        for at, (one, after) in enumerate(zip(own, [*own[1:], None], strict=True))
    ]
    points = [Point(name, one[0], one[1], None if after is None else (after[0], after[1])) for name, one, after in ways]
    axes = (say("exhibit.context.across"), say("exhibit.context.up"))
    yield PlanePanel(say("exhibit.context.plane", word=word, share=share), *axes, points)
    columns = [say("exhibit.context.after"), say("exhibit.context.cosine"), say("exhibit.context.off")]
    yield TablePanel(say("exhibit.context.table", word=word), columns, [*zip([s.path for s in stream(runs[0])], near, alone, strict=True)])
    yield e.answers(say("exhibit.context.answers"), dict(zip(prompts, runs, strict=True)))
    gap = table_gap(runs[0], runs[1], word)
    yield e.claim("start", gap == 0, word=word, gap=gap)
    yield e.claim("moved", near[-1] < near[0] and e.differ(largest_gap(a[-1], b[-1])), first=near[0], last=near[-1])
    still = largest_gap(x, y)
    places = {"a": word_row(runs[0], word), "b": word_row(runs[1], word)}
    yield e.claim("attention", e.same(still), gap=still, **places)
    after = table_hash(e.model)
    yield e.claim("table", before == after, before=before, after=after)


CONTROLS = (Control("first", FIRST), Control("second", SECOND), Control("word", WORD))
EXHIBIT = Exhibit("context", show, controls=CONTROLS)
