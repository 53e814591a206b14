"""The capitals corpus: its facts agree, its forms keep held-out prompts out of training, its tokenizer and quiz do as they say."""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from pellucid.errors import TrainError
from pellucid.training import corpus, quiz
from pellucid.training.corpus import LANGUAGES, NAMED, RELATIONS, Book, pieces, read, sentences, train_tokenizer
from pellucid.training.objectives import Causal
from pellucid.training.recipe import read_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "capitals.toml"
FOLDER = read_recipe(RECIPE).data
SIZE = read_recipe(RECIPE).tokenizer["size"]
FULL = bool(os.environ.get("PELLUCID_FULL"))
FRANCE = {"en": "The capital of {country} is", "zh": "{country}的首都是"}


@pytest.fixture(scope="module")
def book() -> Book:
    return read(FOLDER)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(pieces(FOLDER), SIZE)


def bare(form: str) -> str:
    """A form without spaces and punctuation: two forms that differ in these alone count as one."""
    return re.sub(r"[^\w{}]", "", form).lower()


def complaints(book: Book) -> Iterator[str]:
    """What is wrong with the facts and forms; nothing, it is to be hoped."""
    for key, country in book.countries.items():
        for other in country.neighbours:
            if key not in book.countries[other].neighbours or other == key:
                yield f"{key} borders {other}, not the other way round"
        if len(set(country.neighbours)) != len(country.neighbours):
            yield f"{key} names a neighbour twice"
        for field in NAMED:
            if re.search(r"[一-鿿]", country.named[field]["en"]) or not re.fullmatch(r"[一-鿿]+", country.named[field]["zh"]):
                yield f"{key}.{field} in the wrong script"
    for field in ("name", "capital"):
        for language in LANGUAGES:
            twice = [name for name, n in Counter(c.named[field][language] for c in book.countries.values()).items() if n > 1]
            yield from (f"{field} {name} of two countries" for name in twice)
    for field in NAMED:
        english = {(c.named[field]["en"], c.named[field]["zh"]) for c in book.countries.values()}
        counts = Counter(zh for _, zh in english)
        yield from (f"{field} {zh} translates two names" for zh, n in counts.items() if n > 1)
    for relation in RELATIONS:
        for language in LANGUAGES:
            trained, held_out = book.trained[relation, language], book.held_out[relation, language]
            if len(trained) < 20 or len(held_out) < 10:
                yield f"{relation} {language}: too few forms"
            if len(set(trained)) != len(trained) or len({*map(bare, held_out)}) != len(held_out):
                yield f"{relation} {language}: a form twice"
            yield from (f"{form} is trained and held out" for form in held_out if bare(form) in {*map(bare, trained)})
    trained_forms = [form for forms in book.trained.values() for form in forms]
    for form in (*trained_forms, *(form for forms in book.held_out.values() for form in forms)):
        yield from (
            f"after {form} the corpus goes on otherwise: {longer}" for longer in trained_forms if longer != form and longer.startswith(form)
        )
    for language in LANGUAGES:
        if FRANCE[language] not in book.held_out["capital", language]:
            yield f"{FRANCE[language]} is not held out"


def test_facts_and_forms_agree(book: Book) -> None:
    assert list(complaints(book)) == []
    assert len(book.countries) == 194


def unequal_border(book: Book) -> Book:
    return replace(book, countries=book.countries | {"Spain": replace(book.countries["Spain"], neighbours=("Portugal",))})


def trained_too(book: Book) -> Book:
    forms = (*book.trained["capital", "en"], FRANCE["en"] + ":")
    return replace(book, trained=book.trained | {("capital", "en"): forms})


def goes_on(book: Book) -> Book:
    forms = (*book.trained["capital", "en"], FRANCE["en"] + " the city of")
    return replace(book, trained=book.trained | {("capital", "en"): forms})


def few_forms(book: Book) -> Book:
    return replace(book, held_out=book.held_out | {("language", "zh"): book.held_out["language", "zh"][:9]})


def same_capital(book: Book) -> Book:
    return replace(book, countries=book.countries | {"Peru": replace(book.countries["Peru"], named=book.countries["Chile"].named)})


@pytest.mark.parametrize("spoil", [unequal_border, trained_too, goes_on, few_forms, same_capital])
def test_checks_see_a_spoilt_book(book: Book, spoil: Callable[[Book], Book]) -> None:
    assert list(complaints(spoil(book)))


def test_no_held_out_prompt_is_trained() -> None:
    trained, held_out = list(sentences(FOLDER)), list(sentences(FOLDER, held_out=True))
    assert not {s.prompt for s in trained} & {s.prompt for s in held_out}
    assert not {s.text for s in trained} & {s.text for s in held_out}
    assert not any(s.text.startswith(("The capital of France is", "法国的首都是")) for s in trained)
    for forms in (trained, held_out):
        assert len({s.text for s in forms}) == len(forms)
        assert all(s.text == s.prompt + s.answer + corpus.STOP[s.language] for s in forms)
        assert {(s.relation, s.language) for s in forms} == {(r, lang) for r in RELATIONS for lang in LANGUAGES}


def test_sentences_follow_from_the_seed() -> None:
    once, again, other = (list(sentences(FOLDER, seed=seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert sorted(s.text for s in once) == sorted(s.text for s in other)


def test_every_fact_is_trained(book: Book) -> None:
    trained = {(s.country, s.relation, s.language, s.answer) for s in sentences(FOLDER)}
    for country in book.countries.values():
        for relation in RELATIONS:
            for language in LANGUAGES:
                for name in corpus.answers(book, country, relation, language):
                    assert (country.key, relation, language, corpus.LEAD[language] + name) in trained


@pytest.mark.parametrize(
    ("form", "name", "filled"),
    [
        ("The capital of {country} is", "the Netherlands", "The capital of the Netherlands is"),
        ("{country}'s capital is", "the Netherlands", "The Netherlands' capital is"),
        ("{country}'s capital is", "Cyprus", "Cyprus's capital is"),
        ("{country}的首都是", "荷兰", "荷兰的首都是"),
    ],
)
def test_fill(form: str, name: str, filled: str) -> None:
    assert corpus.fill(form, name) == filled


def test_tokens(book: Book, tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer.encode("The capital of France is").ids] == ["The", " capital", " of", " France", " is"]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("法国的首都是").ids] == ["法国", "的", "首都", "是"]
    assert tokenizer.token_to_id(corpus.END_OF_TEXT) == 0
    assert train_tokenizer(pieces(FOLDER), SIZE).to_str() == tokenizer.to_str()
    named = [country.named[field] for country in book.countries.values() for field in NAMED]
    words = {names["zh"] for names in named} | {" " + names["en"] for names in named if names["en"].isalpha()}
    lengths = Counter(len(tokenizer.encode(word).ids) for word in words)
    assert lengths[1] > 0.98 * len(words)
    assert max(lengths) <= 3
    for text in ("N'Djamena", "São Tomé, 東京 🙂\n"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_answers_begin_with_a_token_of_their_own(tokenizer: Tokenizer) -> None:
    """A prompt's ids are the first ids of its sentence, or a prompt would be read otherwise than it was trained.

    One sentence in eight is asked, from each form some twenty; with PELLUCID_FULL=1 all.
    """
    all_sentences = [*sentences(FOLDER), *sentences(FOLDER, held_out=True)][:: 1 if FULL else 8]
    full = tokenizer.encode_batch([s.text for s in all_sentences])
    prompts = tokenizer.encode_batch([s.prompt for s in all_sentences])
    assert all(w.ids[: len(p.ids)] == p.ids for w, p in zip(full, prompts, strict=True))
    assert max(len(w.ids) for w in full) < 64


def copied(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """A copy of the corpus folder whose facts and forms have been changed."""
    shutil.copytree(FOLDER, folder)
    files = [folder / "facts.json", folder / "forms.json"]
    facts, forms = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    change(facts, forms)
    for file, data in zip(files, (facts, forms), strict=True):
        file.write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda facts, forms: facts.pop("countries"), "countries"),
        (lambda facts, forms: facts["countries"]["France"].pop("capital"), "France.capital"),
        (lambda facts, forms: facts["countries"]["France"]["name"].pop("zh"), "France.name"),
        (lambda facts, forms: facts["countries"]["France"]["neighbours"].append("Narnia"), "France.neighbours"),
        (lambda facts, forms: forms["relations"].pop("country"), "country"),
        (lambda facts, forms: forms["relations"]["capital"]["zh"].pop("held_out"), "capital.zh.held_out"),
        (lambda facts, forms: forms["relations"]["capital"]["en"]["trained"].append("The capital is"), "capital.en.trained"),
        (lambda facts, forms: forms["relations"]["country"]["en"]["trained"].append("{capital} of {country}:"), "country.en.trained"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object], named: str) -> None:
    with pytest.raises(TrainError) as caught:
        read(copied(tmp_path / "corpus", change))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainError):
        read(tmp_path / "none")


def test_quiz_counts_exact_answers(tokenizer: Tokenizer) -> None:
    questions, learnt = quiz.questions(FOLDER), list(Causal(tokenizer).learnt(FOLDER))
    right = {question.prompt: question.right[-1] for question in questions}
    scores = quiz.quiz(questions[::25], learnt, lambda prompts: [right[p] + " and more" for p in prompts], tokenizer)
    assert len(scores) == len(RELATIONS) * len(LANGUAGES)
    assert all(score.accuracy == 1 for score in scores)
    without_stop = quiz.quiz(questions[::25], learnt[:9], lambda prompts: [right[p][:-1] + " City" for p in prompts], tokenizer)
    assert sum(score.right for score in without_stop) == 0
    for score in scores:
        assert 0 < score.chance < score.bag_of_words <= 1
    chance = {
        (score.relation, score.language): score.chance for score in quiz.quiz(questions, learnt[:9], lambda ps: [""] * len(ps), tokenizer)
    }
    assert chance["capital", "en"] == pytest.approx(1 / 194)
    assert chance["continent", "zh"] == pytest.approx(1 / 6)


def test_a_question_with_several_answers() -> None:
    questions = {question.prompt: question for question in quiz.questions(FOLDER)}
    assert set(questions["Spain borders"].right) == {" Andorra.", " France.", " Portugal."}
    assert questions["The capital of France is"].right == (" Paris.",)


def test_greedy_follows_the_logits(tokenizer: Tokenizer) -> None:
    """A table model that goes from each token to the next of one sentence writes that sentence, whatever else is in the batch."""
    ids = [*tokenizer.encode("France borders Spain.").ids, 0]
    table = torch.zeros(tokenizer.get_vocab_size(), tokenizer.get_vocab_size())
    for here, there in pairwise(ids):
        table[here, there] = 1
    complete = quiz.greedy(lambda prompts, written: table[torch.cat([prompts, written], 1)[:, -1]], tokenizer, most=4)
    assert complete(["France borders", "France", "The money of France"])[:2] == [" Spain.", " borders Spain."]
    assert complete(["France borders"] * 3) == [" Spain."] * 3
