"""LoRA: a product of two thin matrices beside a full one, which changes nothing at first, learns, and can be merged at last."""

from collections.abc import Iterator

from pellucid.analysis.low_rank_addition import added, by_rank
from pellucid.analysis.trained_addition import trained_addition
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
RANKS = (1, 2, 4, 8, 16)
READER, STEPS = "pellucid/reader", (20, 40, 80)


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
    steps, reader = int(e.number("steps")), e.open_model(READER)
    trained = trained_addition(reader, int(e.number("rank")), e.on(steps, 0))
    plain, learnt, merged = trained.right
    columns = [say("exhibit.adapter.answering"), say("exhibit.adapter.right", of=trained.of), say("exhibit.adapter.trained")]
    after = say("exhibit.adapter.beside", steps=steps)
    ways = [
        (say("exhibit.adapter.plain"), plain, 0),
        (after, learnt, trained.numbers),
        (say("exhibit.adapter.inside"), merged, trained.numbers),
    ]
    yield TablePanel(say("exhibit.adapter.learned", model=reader.name), columns, ways)
    m, n = one.shape
    yield e.claim("zero", one.idle == 0, gap=one.idle)
    yield e.claim("numbers", one.numbers < one.full, path=one.path, rank=one.rank, m=m, n=n, numbers=one.numbers)
    learned = learnt > plain and merged == learnt
    its: dict[str, float | str] = {"model": reader.name, "parameters": trained.parameters}
    yield e.claim("learned", learned, steps=steps, plain=plain, right=learnt, of=trained.of, numbers=trained.numbers, **its)
    yield e.claim("frozen", trained.unchanged and e.same(trained.gap), gap=trained.gap, **its)
    yield e.claim("merged", e.differ(one.moved) and e.same(one.merged), moved=one.moved, gap=one.merged)


EXHIBIT = Exhibit(
    "adapter", show, controls=(Control("prompt", PROMPT, tokens=2), Control("rank", 4, RANKS), Control("steps", STEPS[1], STEPS))
)
