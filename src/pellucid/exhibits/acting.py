"""Reason and act in turns: the model's own word decides what is looked up next, and the text holds only what was asked for."""

from collections.abc import Iterator

from pellucid.analysis.acting import WAYS, acted
from pellucid.analysis.invented_questions import facts_read
from pellucid.analysis.needs import READER
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say
from pellucid.training.corpus import LANGUAGES

NAMES = {
    "plain": "exhibit.acting.plain",
    "once": "exhibit.acting.once",
    "all": "exhibit.acting.all",
    "turns": "exhibit.acting.turns",
}
KINDS = {"asks": "exhibit.acting.asks", "notes": "exhibit.acting.notes", "writes": "exhibit.acting.writes"}
STEP = ("exhibit.acting.who", "exhibit.acting.text", "exhibit.acting.tokens", "exhibit.acting.rows")
COLUMNS = ("exhibit.acting.way", "exhibit.acting.right", "exhibit.acting.length", "exhibit.acting.again", "exhibit.acting.flops")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    language = e.text("language")
    ways = {way: acted(e.model, language, way, e.on(True, False)) for way in WAYS}
    _, first = ways["turns"]
    e.trace(first.prompt)
    rows = [(say(KINDS[s.kind]), s.text.strip(), s.tokens, s.rows) for s in first.steps]
    yield TablePanel(say("exhibit.acting.steps"), list(map(say, STEP)), rows)
    table = [(say(NAMES[way]), one.right, one.tokens, one.again, one.flops) for way, (one, _) in ways.items()]
    turns, together, plain, once = (ways[way][0] for way in ("turns", "all", "plain", "once"))
    yield TablePanel(say("exhibit.acting.table", of=turns.of), list(map(say, COLUMNS)), table, marked=3)
    able = facts_read(e.model, language)
    if able.able:
        yield e.claim(
            "turns", turns.right > max(plain.right, once.right), right=turns.right, of=turns.of, plain=plain.right, once=once.right
        )
        yield e.claim(
            "all", turns.right > together.right, right=together.right, tokens=together.tokens, turns=turns.right, few=turns.tokens
        )
        wrong, _ = acted(e.model, language, "turns", False)
        yield e.claim("word", wrong.right < turns.right, wrong=wrong.right, right=turns.right, of=turns.of)
    else:
        yield e.claim("unable", not turns.able, right=able.right, of=able.of, model=e.model.name, turns=turns.right)
    yield e.claim("cost", turns.tokens < turns.again, tokens=turns.tokens, again=turns.again, flops=turns.flops)


EXHIBIT = Exhibit("acting", show, "pellucid/reader", controls=(Control("language", LANGUAGES[0], LANGUAGES),), needs=READER)
