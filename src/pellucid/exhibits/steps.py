"""Aloud or at once: a question of two steps, asked in one form, and step by step with the first answer in the second prompt."""

from collections.abc import Iterator

from pellucid.analysis.chaining import AT_ONCE, CONTINENT, COUNTRY, at_once, in_steps, sentence
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

WRITTEN = 6  # tokens of the first answer


def show(e: Experiment) -> Iterator[Panel | Claim]:
    capital = e.text("capital")
    first = e.trace(COUNTRY.format(name=capital), steps=WRITTEN)
    country = sentence(e.model.tokenizer.decode(first.new))
    once = e.trace(AT_ONCE.format(name=capital))
    second = e.trace(CONTINENT.format(name=e.on(country, capital)))
    yield e.answers(say("exhibit.steps.answers"), {str(run.prompt): run for run in (once, first, second)})
    direct, alone = at_once(e.model), in_steps(e.model, carry=False)
    chained = e.on(in_steps(e.model), alone)
    columns = [say("exhibit.steps.way"), say("exhibit.steps.right")]
    rows = [
        (say("exhibit.steps.once"), direct.right),
        (say("exhibit.steps.alone"), alone.right),
        (say("exhibit.steps.steps"), chained.right),
    ]
    yield TablePanel(say("exhibit.steps.table"), columns, rows, marked=2)
    yield e.claim("steps", chained.right > direct.right, right=chained.right, once=direct.right, of=chained.of)
    yield e.claim("carried", chained.right > alone.right, right=chained.right, alone=alone.right, country=country)


EXHIBIT = Exhibit("steps", show, controls=(Control("capital", "Paris"),))
