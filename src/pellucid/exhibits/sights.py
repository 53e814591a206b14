"""Which word sees which: four kinds of models, and one with a window, read one text, and each has a picture of its own."""

from collections.abc import Iterator

from pellucid.analysis.needs import PAST
from pellucid.analysis.visibility import across, own_pairs, pairs_of, reached, visibility, window_pairs, windowed
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel
from pellucid.messages import say

TEXT, PREFIX, WINDOW, MOST = "大家共同努力", 3, 4, 8
ENCODER, BOTH, SHARED = "pellucid/capitals-bert", "pellucid/capitals-t5", "pellucid/capitals-prefix"
LEAST = 1e-6  # by which a row moves that sees a changed word; others do not move at all


def show(e: Experiment) -> Iterator[Panel | Claim]:
    text, prefix = e.text("text"), int(e.number("prefix"))
    bert, t5, glm = (e.open_model(name) for name in (ENCODER, BOTH, SHARED))
    chosen = e.on(prefix, 0)
    e.trace(text)
    open_to_all, split = visibility(bert, text), across(t5, text, prefix)
    causal, partly = visibility(e.model, text), visibility(glm, text, chosen)
    titles = [
        say("exhibit.sights.encoder", model=bert.name, pairs=open_to_all.pairs),
        say("exhibit.sights.both", model=t5.name, pairs=split.pairs),
        say("exhibit.sights.causal", model=e.model.name, pairs=causal.pairs),
        say("exhibit.sights.prefix", model=glm.name, pairs=partly.pairs),
    ]
    for title, own in zip(titles, (open_to_all, split, causal, partly), strict=True):
        yield MatrixPanel(title, own.words, own.words, own.cells, "", "share")
    if windowed(e.model.config):
        yield from through_window(e, text, causal.pairs)
    words = len(partly.words)
    yield e.claim("encoder", open_to_all.complete, pairs=open_to_all.pairs)
    yield e.claim("causal", causal.later == 0 and causal.pairs == own_pairs(e.model, text), pairs=causal.pairs, later=causal.later)
    yield e.claim("prefix", partly.pairs == pairs_of(words, prefix), prefix=prefix, pairs=partly.pairs, later=partly.later)
    moves = [(open_to_all, reached(bert, text)), (causal, reached(e.model, text)), (partly, reached(glm, text, chosen))]
    unlike = sum(own.unlike(moved, LEAST) for own, moved in moves)
    yield e.claim("reached", unlike == 0, unlike=unlike)
    yield e.claim("both", e.same(split.off(2)) and e.same(partly.off(1)), both=split.sums[-1], one=partly.sums[-1])


def through_window(e: Experiment, text: str, causal: int) -> Iterator[Panel | Claim]:
    """Yield what each word sees through a sliding window, and how many pairs that are. causal: pairs without it."""
    window = int(e.number("window"))
    near = visibility(e.variant({"layers.*.attn.window": window}), text)
    title = say("exhibit.sights.window", model=e.model.name, window=window, pairs=near.pairs)
    yield MatrixPanel(title, near.words, near.words, near.cells, "", "share")
    yield e.claim("window", near.pairs == window_pairs(e.model, text, window), window=window, pairs=near.pairs, causal=causal)


CONTROLS = (Control("text", TEXT), Control("prefix", PREFIX, tuple(range(MOST))), Control("window", WINDOW, tuple(range(1, MOST))))
EXHIBIT = Exhibit("sights", show, controls=CONTROLS, needs=PAST)
