"""Questions about invented facts: what is asked, what is looked up, and what tuning leaves alone."""

import pytest
import torch

import pellucid
from pellucid.analysis.invented_questions import (
    COUNT,
    SHOTS,
    asking,
    changed,
    lookup,
    plain,
    questions,
    tuned,
    with_examples,
    with_lookup,
)
from pellucid.api.model import Model
from pellucid.training.corpus import STOP


@pytest.fixture(scope="module")
def reader() -> Model:
    return pellucid.load("pellucid/reader", dtype="float32")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_question_and_its_fact(language: str) -> None:
    given = questions(language)
    assert len(given) == len({one.prompt for one in given}) == COUNT
    assert all(one.statement == one.prompt + one.word + STOP[language] for one in given)
    new = changed(given)
    assert [one.prompt for one in new] == plain(given) and sorted(one.word for one in new) == sorted(one.word for one in given)
    assert all(a.word != b.word and b.statement == b.prompt + b.word + STOP[language] for a, b in zip(given, new, strict=True))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_examples_never_hold_the_answer(language: str) -> None:
    given = questions(language)
    for one, prompt in zip(given, with_examples(given), strict=True):
        assert prompt.endswith(one.prompt) and one.statement not in prompt and prompt.count(STOP[language]) == SHOTS


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_own_sentence_is_looked_up(reader: Model, language: str) -> None:
    given = questions(language)
    assert [lookup(reader, given, one) for one in given] == list(range(COUNT))
    wrong = with_lookup(reader, given, right=False)
    assert all(one.statement not in prompt for one, prompt in zip(given, wrong, strict=True))


def test_a_sentence_is_read(reader: Model) -> None:
    given = questions("en")
    ways = [asking(reader, given, prompts) for prompts in (plain(given), with_lookup(reader, given), with_lookup(reader, given, False))]
    assert [way.right for way in ways] == [0, COUNT, 0]
    assert ways[1].tokens == sum(len(reader.ids(p)) for p in with_lookup(reader, given)) and ways[1].flops > ways[0].flops


def test_tuning_trains_a_copy(reader: Model) -> None:
    given, before = questions("en"), {path: p.clone() for path, p in reader.module.state_dict().items()}
    model, took = tuned(reader, given, 12)
    assert all(torch.equal(p, before[path]) for path, p in reader.module.state_dict().items())
    assert not any(p.requires_grad for p in (*reader.module.parameters(), *model.module.parameters()))
    assert asking(model, given, plain(given)).right > asking(reader, given, plain(given)).right
    assert took.tokens == 12 * sum(len(reader.ids(one.prompt + one.word)) for one in given)
    same, nothing = tuned(reader, given, 0)
    assert nothing.bytes == nothing.tokens == 0 and all(torch.equal(p, before[path]) for path, p in same.module.state_dict().items())
