"""Ask, retrieve, tune: the same questions asked plainly, with examples, with a fact that was looked up, and after training on the facts."""

from collections.abc import Iterator, Sequence

from pellucid.analysis.invented_questions import (
    asking,
    averages,
    changed,
    facts_read,
    plain,
    questions,
    tuned,
    with_examples,
    with_lookup,
)
from pellucid.analysis.needs import READER
from pellucid.api.trace import trace
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say
from pellucid.training.corpus import LANGUAGES

STEPS = (20, 40, 80, 300)
COLUMNS = (
    "exhibit.ladder.way",
    "exhibit.ladder.right",
    "exhibit.ladder.tokens",
    "exhibit.ladder.flops",
    "exhibit.ladder.before",
    "exhibit.ladder.bytes",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    given, steps = questions(e.text("language")), int(e.number("steps"))
    prompts = {
        say("exhibit.ladder.plain"): plain(given),
        say("exhibit.ladder.examples"): with_examples(given),
        say("exhibit.ladder.looked"): with_lookup(e.model, given, e.on(True, False)),
    }
    model, took = tuned(e.model, given, steps)
    after = say("exhibit.ladder.tuned", steps=steps)
    runs = {name: e.trace(texts[0]) for name, texts in prompts.items()} | {after: trace(model, given[0].prompt)}
    yield e.answers(say("exhibit.ladder.answers", word=given[0].word.strip()), runs)
    ways = [asking(e.model, given, texts) for texts in prompts.values()]
    bare, shots, looked = ways
    learnt = asking(model, given, plain(given))
    rows: list[Sequence[str | float]] = [(name, way.right, *averages(way), 0, 0) for name, way in zip(prompts, ways, strict=True)]
    rows.append((after, learnt.right, *averages(learnt), took.flops, took.bytes))
    yield TablePanel(say("exhibit.ladder.table", of=bare.of), list(map(say, COLUMNS)), rows)

    other = changed(given)
    retold, stuck = (asking(own, other, with_lookup(own, other)) for own in (e.model, model))
    columns = [say("exhibit.ladder.model"), say("exhibit.ladder.new")]
    facts = [(say("exhibit.ladder.untuned"), retold.right), (after, stuck.right)]
    yield TablePanel(say("exhibit.ladder.changed", of=stuck.of), columns, facts)
    able = facts_read(e.model, e.text("language"))
    if not able.able:
        yield e.claim(
            "unable",
            not (shots.able or looked.able),
            right=able.right,
            of=able.of,
            model=e.model.name,
            shots=shots.right,
            looked=looked.right,
        )
        yield e.claim("tuned", learnt.right > bare.right, right=learnt.right, of=learnt.of, tokens=took.tokens, bytes=took.bytes)
        return
    yield e.claim("unknown", shots.right < looked.right, plain=bare.right, shots=shots.right, of=bare.of)
    yield e.claim("looked", looked.right > bare.right, right=looked.right, of=looked.of)
    wrong = asking(e.model, given, with_lookup(e.model, given, False))
    yield e.claim("wrong", wrong.right < looked.right, right=looked.right, wrong=wrong.right)
    yield e.claim("tuned", learnt.right > bare.right, right=learnt.right, of=learnt.of, tokens=took.tokens, bytes=took.bytes)
    yield e.claim("stuck", stuck.right < retold.right, right=retold.right, stuck=stuck.right, of=stuck.of)


CONTROLS = (Control("language", LANGUAGES[0], LANGUAGES), Control("steps", 40, STEPS))
EXHIBIT = Exhibit("ladder", show, "pellucid/reader", controls=CONTROLS, needs=READER)
