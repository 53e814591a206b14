"""Shuffled words: without positions attention follows a shuffle of its rows, and a causal mask ends even that."""

from collections.abc import Iterator

from pellucid.analysis.needs import GENERATOR, UNPLACED
from pellucid.analysis.shuffle import Shuffled, shuffled, without_positions
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    plain, bare = e.model, e.variant(without_positions(e.model.config))
    rows: list[tuple[str, Shuffled]] = [
        (say("exhibit.order.with"), shuffled(plain, e.text("prompt"), causal=False)),
        (say("exhibit.order.without"), shuffled(bare, e.text("prompt"), causal=False)),
        (say("exhibit.order.causal"), shuffled(bare, e.text("prompt"), causal=True)),
    ]
    columns = [say("exhibit.order.case"), say("exhibit.order.gap")]
    yield TablePanel(say("exhibit.order.table"), columns, [(about, one.gap) for about, one in rows])
    (_, positioned), (_, free), (_, causal) = rows
    yield e.claim("follows", e.same(free.gap), gap=free.gap)
    yield e.claim("positions", e.differ(positioned.gap), gap=positioned.gap)
    yield e.claim("causal", e.differ(causal.gap), gap=causal.gap)
    questions = {"capital": say("exhibit.order.capital"), "country": say("exhibit.order.country")}
    own, lost = ({relation: e.quality(model, relation=relation) for relation in questions} for model in (plain, bare))
    heads = say("exhibit.order.asked"), say("exhibit.order.own", of=own["capital"].of), say("exhibit.order.bare", of=own["capital"].of)
    yield TablePanel(say("exhibit.order.right"), heads, [(text, own[key].right, lost[key].right) for key, text in questions.items()])
    moved = [own[key].moved(lost[key]) for key in questions]
    names = {"capital": "capitals", "country": "countries"}
    numbers = {names[key]: lost[key].right for key in questions} | {f"own_{names[key]}": own[key].right for key in questions}
    yield e.claim("answers", e.differ(min(moved)), **numbers, of=own["capital"].of, moved=max(moved))


EXHIBIT = Exhibit("order", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=(*GENERATOR, *UNPLACED))
