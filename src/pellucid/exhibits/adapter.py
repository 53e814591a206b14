"""LoRA: a product of two thin matrices beside a full one, which changes nothing at first and can be merged at last."""

from collections.abc import Iterator

from pellucid.analysis.low_rank_addition import added, by_rank
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
RANKS = (1, 2, 4, 8, 16)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    one = added(e.model, e.text("prompt"), int(e.number("rank")), merges=e.on(1, 2))
    columns = [say("exhibit.adapter.state"), say("exhibit.adapter.gap")]
    states = [
        (say("exhibit.adapter.idle"), one.idle),
        (say("exhibit.adapter.moved"), one.moved),
        (say("exhibit.adapter.merged"), one.merged),
    ]
    yield TablePanel(say("exhibit.adapter.states"), columns, states)
    columns = [say("exhibit.adapter.rank"), say("exhibit.adapter.numbers"), say("exhibit.adapter.share")]
    yield TablePanel(say("exhibit.adapter.ranks"), columns, [*by_rank(e.model, RANKS)])
    m, n = one.shape
    yield e.claim("zero", one.idle == 0, gap=one.idle)
    yield e.claim("numbers", one.numbers < one.full, path=one.path, rank=one.rank, m=m, n=n, numbers=one.numbers)
    yield e.claim("merged", e.differ(one.moved) and e.same(one.merged), moved=one.moved, gap=one.merged)


EXHIBIT = Exhibit("adapter", show, controls=(Control("prompt", PROMPT), Control("rank", 4, RANKS)))
