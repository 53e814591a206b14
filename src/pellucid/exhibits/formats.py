"""One model, four tasks: what is fed and which row is read make a task of a model whose weights stay as they are."""

from collections.abc import Iterator, Sequence

from pellucid.analysis.invented_questions import facts_read
from pellucid.analysis.needs import READER
from pellucid.analysis.task_formats import TASKS, JudgedTask, TaskText, ids_text, linear_map, parts
from pellucid.analysis.watched_steps import weights_hash
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Box, DiagramPanel, Panel, TablePanel
from pellucid.messages import say
from pellucid.training.corpus import LANGUAGES

NAMES = {
    "classification": "exhibit.formats.classification",
    "entailment": "exhibit.formats.entailment",
    "similarity": "exhibit.formats.similarity",
    "choice": "exhibit.formats.choice",
}
GIVEN = {
    "classification": "exhibit.formats.text",
    "entailment": "exhibit.formats.premise",
    "similarity": "exhibit.formats.first",
    "choice": "exhibit.formats.question",
}
READ = {
    "entailment": "exhibit.formats.statement",
    "similarity": "exhibit.formats.other",
    "choice": "exhibit.formats.answer",
}
MADE = {
    "classification": "exhibit.formats.class",
    "entailment": "exhibit.formats.share",
    "similarity": "exhibit.formats.sum",
    "choice": "exhibit.formats.softmax",
}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    language = e.text("language")
    before = weights_hash(e.model.module)
    wrong = {key: task(e.model, language, False) for key, task in TASKS.items()}
    tasks = e.on({key: task(e.model, language, True) for key, task in TASKS.items()}, wrong)
    e.trace(tasks["classification"].texts[0].text)
    stacks = {say(NAMES[key]): [*boxes(e, key, one.texts[0])] for key, one in tasks.items()}
    yield DiagramPanel(say("exhibit.formats.diagram"), stacks)
    columns = [say("exhibit.formats.task"), say("exhibit.formats.number"), say("exhibit.formats.fed"), say("exhibit.formats.ids")]
    yield TablePanel(say("exhibit.formats.example"), columns, [*examples(e, tasks)])
    yield from judged(e, tasks, wrong)
    one, other = tasks["similarity"].numbers
    yield e.claim("orders", one != other, one=one, other=other)
    after = weights_hash(e.model.module)
    yield e.claim("weights", before == after, before=before, after=after)


def judged(e: Experiment, tasks: dict[str, JudgedTask], wrong: dict[str, JudgedTask]) -> Iterator[Claim]:
    """Yield what the model makes of the tasks, if it reads facts off a text at all. wrong: read at the first row."""
    rights, able = {key: one.right for key, one in tasks.items()}, facts_read(e.model, e.text("language"))
    if not able.able:
        beyond = all(one.right > one.chance for one in tasks.values())
        yield e.claim("unable", not beyond, facts=able.right, asked=able.of, model=e.model.name, of=tasks["choice"].of, **rights)
        return
    chances = {f"{key}_chance": f"{one.chance:g}" for key, one in tasks.items()}
    yield e.claim("four", all(one.right > one.chance for one in tasks.values()), of=tasks["choice"].of, **rights, **chances)
    first = {key: one.right for key, one in wrong.items()}
    yield e.claim("wrong", all(one.right < tasks[key].right for key, one in wrong.items()), **first)


def boxes(e: Experiment, key: str, text: TaskText) -> Iterator[Box]:
    """Yield what one case feeds, and what is read."""
    given, read = parts(e.model, text)
    yield Box(say(GIVEN[key]), say("exhibit.formats.tokens", count=len(given)))
    if key in READ:
        yield Box(say(READ[key]), say("exhibit.formats.tokens", count=len(read)))
    yield Box(e.model.name, say("exhibit.formats.blocks", count=len(e.model.config.layers)))
    yield Box(say("exhibit.formats.before" if key in READ else "exhibit.formats.last"), marked=True)
    yield Box(say(MADE[key]), "" if key in READ else linear_map(e.model, language=e.text("language")))


def examples(e: Experiment, tasks: dict[str, JudgedTask]) -> Iterator[Sequence[str | float]]:
    """Yield a row for each text of one case of each task."""
    for key, one in tasks.items():
        for text, number in zip(one.texts, one.numbers, strict=True):
            yield say(NAMES[key]), number, text.marked, ids_text(e.model, text)


EXHIBIT = Exhibit("formats", show, "pellucid/reader", controls=(Control("language", LANGUAGES[0], LANGUAGES),), needs=READER)
