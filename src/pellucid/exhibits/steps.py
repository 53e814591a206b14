"""Aloud or at once: a question of two steps, asked in one form, and step by step with the first answer in the second prompt."""

from collections.abc import Iterator

from pellucid.analysis.chaining import AT_ONCE, CONTINENT, COUNTRY, chained, sentence
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
    all_of = chained(e.model, carry=e.on(True, False))
    alone = chained(e.model, carry=False)
    columns = [say("exhibit.steps.way"), say("exhibit.steps.right")]
    rows = [
        (say("exhibit.steps.once"), all_of.at_once.right),
        (say("exhibit.steps.alone"), alone.in_steps.right),
        (say("exhibit.steps.steps"), all_of.in_steps.right),
    ]
    yield TablePanel(say("exhibit.steps.table"), columns, rows, marked=2)
    right, of = all_of.in_steps.right, all_of.in_steps.of
    yield e.claim("steps", right > all_of.at_once.right, right=right, once=all_of.at_once.right, of=of)
    yield e.claim("carried", right > alone.in_steps.right, right=right, alone=alone.in_steps.right, country=country)


EXHIBIT = Exhibit("steps", show, controls=(Control("capital", "Paris"),))
