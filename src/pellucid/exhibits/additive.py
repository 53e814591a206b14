"""Two ways to score: a sum through tanh beside a product, with the same projections, on the same rows."""

from collections.abc import Iterator
from functools import partial

from pellucid.analysis.independence import rows_of
from pellucid.analysis.needs import CAUSAL_HEADS
from pellucid.analysis.score_kinds import additive, dot, kept_by_length, query_gap, rows_of_length, score, score_work
from pellucid.analysis.turns_timed import in_turn
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

PROMPT, LENGTHS = "The capital of France is", (4, 8, 16, 32, 64)
COLUMNS = (
    "exhibit.additive.way",
    "exhibit.additive.given",
    "exhibit.additive.made",
    "exhibit.additive.flops",
    "exhibit.additive.elementwise",
    "exhibit.additive.pair",
    "exhibit.additive.kept",
)

TIMED = (
    "exhibit.additive.way",
    "exhibit.additive.flops",
    "exhibit.additive.elementwise",
    "exhibit.additive.kept",
    "exhibit.fastest",
    "exhibit.median",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    x = rows_of(e.trace(e.text("prompt")))
    layers = {say("exhibit.additive.dot"): dot(e.model), say("exhibit.additive.sum"): additive(e.model, e.on(True, False))}
    product, bent = (score_work(layer, x) for layer in layers.values())
    rows = [
        (way, str(w.given), str(w.made), w.flops, w.elementwise, w.pair, w.kept) for way, w in zip(layers, (product, bent), strict=True)
    ]
    yield TablePanel(say("exhibit.additive.table"), list(map(say, COLUMNS)), rows)
    series = {way: kept_by_length(layer, x, LENGTHS) for way, layer in layers.items()}
    yield LinePanel(say("exhibit.additive.lines"), say("exhibit.additive.tokens"), LENGTHS, series)
    long = rows_of_length(x, LENGTHS[-1])
    times = in_turn({way: partial(score, layer, long) for way, layer in layers.items()})
    longest = {way: score_work(layer, long) for way, layer in layers.items()}
    timed = [(way, w.flops, w.elementwise, w.kept, times[way].fastest, times[way].median) for way, w in longest.items()]
    yield TablePanel(say("exhibit.additive.times", tokens=LENGTHS[-1]), list(map(say, TIMED)), timed)
    yield e.claim("shapes", product.given == bent.given and product.made == bent.made, given=str(bent.given), made=str(bent.made))
    more = bent.flops == product.flops and bent.elementwise > 0
    yield e.claim("work", more, dot=product.flops, sum=bent.flops, elementwise=bent.elementwise)
    yield e.claim("kept", bent.kept > product.kept, dot=product.kept, sum=bent.kept, pair=bent.pair)
    straight = query_gap(score_work(additive(e.model, False), x))
    own = query_gap(bent)
    yield e.claim("tanh", e.differ(own) and e.same(straight), gap=own, straight=straight)


EXHIBIT = Exhibit("additive", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=CAUSAL_HEADS)
