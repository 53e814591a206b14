"""Texts of invented facts and where a model looks for one, against the text and the pattern read by hand."""

import pytest
import torch

import pellucid
from pellucid.analysis.reading import question_texts, word_place
from pellucid.errors import UseError


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.load("pellucid/reader", dtype="float64")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_text_asks_for_each_of_its_facts(language: str) -> None:
    texts = question_texts(4, language=language)
    assert [t.between for t in texts] == [0, 1, 2, 3] and len({t.word for t in texts}) == 4
    for text in texts:
        stop = "." if language == "en" else "。"
        *stated, question = text.prompt.split(stop)
        assert len(stated) == 4 and stated[3 - text.between].strip() == (question + text.word).strip()


def test_without_its_fact_a_text_does_not_hold_the_answer() -> None:
    assert all(text.word not in text.prompt for text in question_texts(4, stated=False))


def test_the_head_and_its_weight(model: pellucid.Model) -> None:
    text = question_texts(4)[2]
    run = pellucid.trace(model, text.prompt)
    seen = word_place(run, text.word)
    place = run.ids.index(model.tokenizer.encode(text.word)[0])
    weights = torch.stack([run[f"layers.{i}.attn.pattern"].value[0, :, -1, place] for i in range(2)])
    assert seen.back == len(run.ids) - 1 - place and seen.weight == float(weights.max())
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    assert (seen.path, seen.head) == (f"layers.{layer}.attn.pattern", head) and seen.answered == text.word
    assert seen.weight != float(weights.min())


def test_a_word_of_several_tokens_is_refused(model: pellucid.Model) -> None:
    with pytest.raises(UseError):
        word_place(pellucid.trace(model, question_texts(2)[0].prompt), " red blue")
