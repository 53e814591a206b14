"""A corpus of invented facts: a text states some and then asks for them, so that only the text itself holds the answers.

    "The key of Alda is red. The key of Borin is blue. The key of Alda is"   ->   answer " red", end "."

The folder has `words.json`: names, things and values, and a form of each language. Every text pairs names with values anew. A fifth of all
pairs is held out of training, and the quiz asks for these alone. Random tokens that are read again teach a model to copy as such.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.checkpoint.json_file import read_object
from pellucid.errors import TrainError
from pellucid.training.corpus import LANGUAGES, LEAD, STOP

WORDS = "words.json"
LISTS = ("names", "things", "values")
FOLDS = 5
"""The number of pairs of a name and a value of which one is held out."""
QUIZZED = (2, 4, 8)
"""How many facts the texts of the quiz state."""
ASKED = 200
"""Questions for each number of facts and each language."""


@dataclass(frozen=True)
class Invented:
    """The [data] table of such a corpus. folder: of `words.json`.  texts: their number.  facts: the most that a text states.

    copies: the number of random sequences.  length: the most tokens of one, which is then read again.
    """

    folder: Path
    texts: int
    facts: int
    copies: int
    length: int


@dataclass(frozen=True)
class Words:
    """The words of one language. form: a prompt with the slots {thing} and {name}, which ends right before the value."""

    language: str
    form: str
    names: tuple[str, ...]
    things: tuple[str, ...]
    values: tuple[str, ...]

    def prompt(self, thing: str, name: str) -> str:
        return self.form.format(thing=thing, name=name)

    def statement(self, thing: str, fact: "Fact") -> str:
        """Return a fact as a sentence."""
        return self.prompt(thing, fact.name) + LEAD[self.language] + fact.value + STOP[self.language]

    def text(self, thing: str, facts: "list[Fact]") -> str:
        """Return the facts as sentences of one text."""
        return LEAD[self.language].join(self.statement(thing, fact) for fact in facts)


class Fact(NamedTuple):
    """A name and the value of its thing."""

    name: str
    value: str


class Example(NamedTuple):
    """One text. stated: its facts.  again: the same in another order, with a lead.

    prompt, answer: the text up to the first value that is read again, and that value with its stop.
    """

    stated: str
    again: str
    prompt: str
    answer: str
    language: str


def read_words(folder: Path) -> list[Words]:
    """Read and check `words.json`. A TrainError at the first field that does not fit."""
    path = folder / WORDS
    table = read_object(path, error=TrainError)
    return [_words(table, language, path) for language in LANGUAGES]


def _words(table: dict[str, Any], language: str, path: Path) -> Words:
    groups = {name: table.get(name) for name in ("forms", *LISTS)}
    own = {name: group.get(language) if isinstance(group, dict) else None for name, group in groups.items()}
    for name in LISTS:
        words = own[name]
        if not isinstance(words, list) or not words or not all(isinstance(w, str) and w for w in words) or len({*words}) < len(words):
            raise TrainError("corpus.field", path=path, field=f"{name}.{language}")
    form, slots = own["forms"], ("{thing}", "{name}")
    if not isinstance(form, str) or any(form.count(slot) != 1 for slot in slots) or form.count("{") + form.count("}") != 4:
        raise TrainError("corpus.form", path=path, field=f"forms.{language}", form=form, slot=" ".join(slots))
    names, things, values = (tuple(own[name] or ()) for name in LISTS)
    return Words(language, form, names, things, values)


def most_facts(folder: Path) -> int:
    """Return the most facts that a text can state, so that names and values are left to choose from."""
    return min(len(words) for one in read_words(folder) for words in (one.names, one.values)) // 2


def paired(words: Words, count: int, held_out: bool, draw: random.Random) -> list[Fact]:
    """Return facts of `count` names with as many values, whose pairs are all trained, or all held out."""
    names, values = (draw.sample(range(len(group)), len(group)) for group in (words.names, words.values))
    out: list[Fact] = []
    for name in names:
        fits = [value for value in values if ((name + value) % FOLDS == 0) == held_out]
        if fits and len(out) < count:
            values.remove(fits[0])
            out.append(Fact(words.names[name], words.values[fits[0]]))
    return out


def example(words: Words, count: int, held_out: bool, draw: random.Random) -> Example:
    """Return a text that states `count` facts of one thing and asks for each, in another order, and for two of them once more."""
    facts, thing = paired(words, count, held_out, draw), draw.choice(words.things)
    order = [*draw.sample(facts, len(facts)), *draw.choices(facts, k=2)]
    lead, stated = LEAD[words.language], words.text(thing, facts)
    prompt, answer = stated + lead + words.prompt(thing, order[0].name), lead + order[0].value + STOP[words.language]
    return Example(stated, lead + words.text(thing, order), prompt, answer, words.language)


def examples(data: Invented, seed: int) -> Iterator[Example]:
    """Yield the texts to train on, of 2 to `data.facts` facts, in both languages."""
    words, draw = read_words(data.folder), random.Random(f"texts:{seed}")
    for _ in range(data.texts):
        yield example(draw.choice(words), draw.randint(2, data.facts), False, draw)


def quizzed(data: Invented) -> Iterator[tuple[int, Example]]:
    """Yield the texts of the quiz with the number of their facts; no pair of a name and a value in them was trained."""
    draw = random.Random("quiz")
    for words in read_words(data.folder):
        for count in QUIZZED:
            yield from ((count, example(words, count, True, draw)) for _ in range(ASKED if count <= data.facts else 0))


def copies(data: Invented, vocab: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield ids drawn from all of the vocabulary, and the same read again and again, up to twice the length of the longest."""
    draw = random.Random(f"copies:{seed}")
    for _ in range(data.copies):
        ids = [draw.randrange(vocab) for _ in range(draw.randint(2, data.length))]
        again = ids * (2 * data.length // len(ids))
        yield ids, again[: 2 * data.length - len(ids)]


def word_pieces(data: Invented) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on: each word with its lead, so that it becomes one token, and what lies between."""
    for words in read_words(data.folder):
        lead, parts = LEAD[words.language], words.form.replace("{name}", "{thing}").split("{thing}")
        yield from (lead + word for word in (*words.names, *words.things, *words.values))
        yield from (part.rstrip() for part in parts)
        yield from (lead + parts[0].rstrip(), STOP[words.language])
