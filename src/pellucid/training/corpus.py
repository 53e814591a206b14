"""A small corpus written from facts: every sentence is a form with one country filled in.

    form "The capital of {country} is"  +  fact France, Paris   ->   prompt "The capital of France is", answer " Paris", end "."

The folder has `facts.json` (countries) and `forms.json` (prompts ending right before their answer). Some forms are held out of training:
a model that answers them has learnt the fact, and not a string of tokens; `quiz.py` uses them. `translations.json` has the Chinese form
of each relation, the one target of all its English forms. The corpora that ship are folders of `corpora/`.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pellucid.checkpoint.json_file import read_object
from pellucid.errors import TrainError

END_OF_TEXT = "<|endoftext|>"
LANGUAGES = ("en", "zh")
RELATIONS = ("capital", "country", "continent", "language", "currency", "neighbours")
LEAD = {"en": " ", "zh": ""}
"""What stands between a prompt and its answer; it belongs to the answer, as in GPT-2's tokens."""
STOP = {"en": ".", "zh": "。"}
"""What ends a sentence."""
NAMED = ("name", "capital", "continent", "language", "currency")
CORPORA = Path(__file__).parent / "corpora"


@dataclass(frozen=True)
class Country:
    """One country. named[field][language]: a name.  neighbours: keys of other countries."""

    key: str
    named: dict[str, dict[str, str]]
    neighbours: tuple[str, ...]


@dataclass(frozen=True)
class Book:
    """The facts and forms of one folder. trained, held_out: forms by (relation, language).  vocabulary: words for the tokenizer alone."""

    countries: dict[str, Country]
    trained: dict[tuple[str, str], tuple[str, ...]]
    held_out: dict[tuple[str, str], tuple[str, ...]]
    vocabulary: tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """One document of the corpus. text: `prompt + answer +` the stop of its language."""

    text: str
    prompt: str
    answer: str
    relation: str
    language: str
    form: str
    country: str


def corpora() -> dict[str, Path]:
    """Return the folders of the corpora that ship with the package, by their names, such as "pellucid/capitals"."""
    return {f"pellucid/{folder.name}": folder for folder in sorted(CORPORA.iterdir()) if folder.is_dir()}


def read(folder: Path) -> Book:
    """Read and check `facts.json` and `forms.json`. A TrainError at the first field that does not fit."""
    path = folder / "facts.json"
    entries = _object(read_object(path, error=TrainError), "countries", path)
    countries = {key: _country(key, entries, path) for key in entries}
    path = folder / "forms.json"
    forms = read_object(path, error=TrainError)
    relations, vocabulary = _object(forms, "relations", path), _object(forms, "words", path)
    trained, held_out = (
        {(relation, language): _forms(relations, relation, language, kind, path) for relation in RELATIONS for language in LANGUAGES}
        for kind in ("trained", "held_out")
    )
    return Book(countries, trained, held_out, tuple(word for group in vocabulary.values() for word in group))


def _object(data: dict[str, Any], field: str, path: Path) -> dict[str, Any]:
    if not isinstance(value := data.get(field), dict) or not value:
        raise TrainError("corpus.field", path=path, field=field)
    return value


def _country(key: str, entries: dict[str, Any], path: Path) -> Country:
    entry = _object(entries, key, path)
    named: dict[str, dict[str, str]] = {}
    for field in NAMED:
        names = entry.get(field)
        if not isinstance(names, dict) or not all(isinstance(names.get(lang), str) and names[lang] for lang in LANGUAGES):
            raise TrainError("corpus.field", path=path, field=f"countries.{key}.{field}")
        named[field] = {lang: names[lang] for lang in LANGUAGES}
    neighbours = entry.get("neighbours")
    if not isinstance(neighbours, list) or not all(isinstance(other, str) and other in entries for other in neighbours):
        raise TrainError("corpus.field", path=path, field=f"countries.{key}.neighbours")
    return Country(key, named, tuple(neighbours))


def _forms(relations: dict[str, Any], relation: str, language: str, kind: str, path: Path) -> tuple[str, ...]:
    field = f"{relation}.{language}.{kind}"
    forms = _object(_object(relations, relation, path), language, path).get(kind)
    if not isinstance(forms, list) or not forms:
        raise TrainError("corpus.field", path=path, field=field)
    for form in forms:
        if not isinstance(form, str) or form.count(slot(relation)) != 1 or form.count("{") + form.count("}") != 2:
            raise TrainError("corpus.form", path=path, field=field, form=form, slot=slot(relation))
    return tuple(forms)


def slot(relation: str) -> str:
    """Return the slot of a relation's forms."""
    return "{capital}" if relation == "country" else "{country}"


def subject(country: Country, relation: str, language: str) -> str:
    """Return what a prompt names of a country: its name, or its capital where the country is the answer."""
    return country.named["capital" if relation == "country" else "name"][language]


def fill(form: str, name: str) -> str:
    """Return the form with a name in its slot: "{country}'s capital is", "the Netherlands" -> "The Netherlands' capital is"."""
    before, after = form.split("{", 1)[0], form.split("}", 1)[1]
    if after.startswith("'s") and name.startswith("the ") and name.endswith("s"):
        after = "'" + after[2:]
    return (before + name + after) if before else name[0].upper() + name[1:] + after


def answers(book: Book, country: Country, relation: str, language: str) -> list[str]:
    """Return the right answers without lead and stop: one, or one for each neighbour of the country."""
    if relation == "neighbours":
        return [book.countries[other].named["name"][language] for other in country.neighbours]
    return [country.named["name" if relation == "country" else relation][language]]


def sentences(folder: Path, held_out: bool = False, seed: int = 0) -> Iterator[Sentence]:
    """Yield every sentence of the trained or held-out forms once, in an order by the seed; a text of two forms comes once.

    A form states one answer for each country. A country with several neighbours names one of them in each form, so that every relation has
    about the same weight in the corpus.
    """
    book = read(folder)
    seen: dict[str, Sentence] = {}
    for (relation, language), forms in (book.held_out if held_out else book.trained).items():
        for country in book.countries.values():
            names = answers(book, country, relation, language)
            for turn, form in enumerate(forms if names else ()):
                prompt, answer = fill(form, subject(country, relation, language)), LEAD[language] + names[turn % len(names)]
                text = prompt + answer + STOP[language]
                seen.setdefault(text, Sentence(text, prompt, answer, relation, language, form, country.key))
    order = list(seen.values())
    random.Random(seed).shuffle(order)
    yield from order


def translations(folder: Path, held_out: bool = False, seed: int = 0) -> Iterator[tuple[Sentence, str]]:
    """Yield every English sentence of `sentences` with the Chinese sentence of its fact, from `translations.json`."""
    book, path = read(folder), folder / "translations.json"
    forms = _object(read_object(path, error=TrainError), "zh", path)
    for relation in RELATIONS:
        form, slots = forms.get(relation), ("{subject}", "{answer}")
        if not isinstance(form, str) or any(form.count(slot) != 1 for slot in slots) or form.count("{") + form.count("}") != 4:
            raise TrainError("corpus.form", path=path, field=f"zh.{relation}", form=form, slot=" ".join(slots))
    for s in sentences(folder, held_out, seed):
        if s.language == "en":
            country = book.countries[s.country]
            turn = answers(book, country, s.relation, "en").index(s.answer.removeprefix(LEAD["en"]))
            yield (
                s,
                forms[s.relation].format(subject=subject(country, s.relation, "zh"), answer=answers(book, country, s.relation, "zh")[turn]),
            )


def pieces(folder: Path) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on: names alone and forms without names, so that no token spans both.

    Chinese has no spaces to stop a merge: whole sentences would teach 国的首 from 法国的首都, and 法国 would then be cut apart.
    So Chinese forms are given character by character, and the words worth a token of their own are listed in `forms.json`.
    """
    book = read(folder)
    for country in book.countries.values():
        for field in NAMED:
            for language in LANGUAGES:
                name = country.named[field][language]
                yield LEAD[language] + name
                if language == "en" and field in ("name", "capital"):
                    yield fill("{}", name)
    for (_, language), forms in book.trained.items():
        for form in forms:
            before, after = form.split("{", 1)[0].rstrip(), form.split("}", 1)[1]
            yield from [before, after] if language == "en" else before + after
    yield from book.vocabulary
    yield from STOP.values()


def train_tokenizer(texts: Iterable[str], size: int, special: Sequence[str | AddedToken] = (END_OF_TEXT,)) -> Tokenizer:
    """Return a byte-level BPE tokenizer like GPT-2's with at most `size` tokens, the special ones first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
