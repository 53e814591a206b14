"""Sums of words: whether Paris - France + Japan leads to Tokyo in the table of a small model."""

from collections.abc import Iterator

from pellucid.analysis.needs import NO_ENCODER
from pellucid.analysis.word_vectors import combined, nearest_rows, place_of
from pellucid.exhibits.exhibit import BEST, Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PLUS, MINUS, MORE, ANSWER = " Paris", " France", " Japan", " Tokyo"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    plus, minus, more, answer = (e.text(name) for name in ("plus", "minus", "more", "answer"))
    near = nearest_rows(e.model, combined(e.model, [plus, more], [minus], e.on(0, 1)))
    columns = [say("exhibit.analogy.rank"), say("exhibit.analogy.piece"), say("exhibit.analogy.cosine")]
    target = place_of(e.model, near, answer)
    shown = [*near[:BEST], target]
    text = say("exhibit.analogy.sum", plus=plus, minus=minus, more=more)
    yield TablePanel(say("exhibit.analogy.table", sum=text), columns, [(one.rank, one.piece, one.cosine) for one in shown], BEST)
    first = near[0]
    yield e.claim("summand", first.piece in (plus, more), sum=text, first=first.piece, cosine=first.cosine)
    yield e.claim("rank", target.rank > 1, answer=answer, rank=target.rank, of=len(near))


CONTROLS = (Control("plus", PLUS), Control("minus", MINUS), Control("more", MORE), Control("answer", ANSWER))
EXHIBIT = Exhibit("analogy", show, controls=CONTROLS, needs=(NO_ENCODER,))
