"""Quality: each answer of the batch is that of its prompt alone, changes act on it, and only right answers count."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pellucid
from pellucid.analysis import quality as qualities
from pellucid.analysis.quality import Quality, capitals, quality, subjects
from pellucid.api.model import Model, make, specimens
from pellucid.batch.step import Step
from pellucid.errors import UseError
from pellucid.training.corpus import LEAD, answers
from tiny import swapped
from variant_models import plain

ASKED = sorted(name.removeprefix("pellucid/") for name in specimens() if name.startswith("pellucid/capitals") and "t5" not in name)
FLOAT64 = {name: pellucid.load(f"pellucid/{name}", dtype="float64") for name in ASKED}


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def differing(name: str, q: Quality) -> int:
    """Return how many answers of every ninth country differ from the model's own on that prompt alone."""
    model, count = FLOAT64[name], 0
    for row in q.countries[::9]:
        ids = model.ids(row.prompt)
        at = min(model.blanks(ids), default=-1)
        count += model.tokenizer.decode([int(model(torch.tensor([ids]))[0, at].argmax())]) != row.answered
    return count


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(("relation", "language"), [("capital", "en"), ("language", "zh"), ("currency", "en"), ("country", "zh")])
@pytest.mark.quick(8)
def test_an_answer_is_that_of_the_prompt_alone(name: str, relation: str, language: str) -> None:
    q = quality(FLOAT64[name], relation, language)
    assert q.of == len(q.countries) == 194 and q.right == sum(row.right for row in q.countries) > 150
    assert differing(name, q) == 0


@pytest.mark.parametrize("name", ["capitals-llama", "capitals-bert"])
def test_the_loss_is_that_of_the_prompt_alone(name: str) -> None:
    """−log of the chance of all right first tokens together; the mutant, another country's, is far off."""
    model, q = FLOAT64[name], quality(FLOAT64[name], "language", "zh")
    book = capitals()

    def loss(row: Any, country: str) -> float:
        ids = model.ids(row.prompt)
        chances = model(torch.tensor([ids]))[0, min(model.blanks(ids), default=-1)].softmax(0)
        named = answers(book, book.countries[country], "language", "zh")
        return -float(chances[sorted({model.tokenizer.encode(LEAD["zh"] + a, special=False)[0] for a in named})].sum().log())

    for row, other in zip(q.countries[::40], q.countries[1::40], strict=True):
        assert row.loss == pytest.approx(loss(row, row.country), abs=1e-10)
        assert other.expected == row.expected or abs(row.loss - loss(row, other.country)) > 0.1
    assert q.loss == pytest.approx(sum(row.loss for row in q.countries) / 194) and q.moved(q) == 0


def test_a_wrong_row_or_mask_is_seen() -> None:
    """The mutants: a prefix that is read causally, and the last row in place of the blank."""
    made = Step.plain

    def causal(tokens: Any, padding: Any = None, mask: Any = None, types: Any = None) -> Step:
        return made(tokens, padding, None, types)

    for name, owner, attribute, mutant in (
        ("capitals-prefix", Step, "plain", staticmethod(causal)),
        ("capitals-bert", Model, "blanks", lambda self, ids: []),
    ):  # fmt: skip
        with swapped(owner, attribute, mutant):
            q = quality(FLOAT64[name], "continent", "en")
        assert differing(name, q) > 0, name


CHANGES = [(pellucid.zero("layers.0.ffn"), 0), (pellucid.zero("layers.0.attn.z", H=0), 110), (pellucid.zero("layers.0.attn.z", H=3), 40)]


@pytest.mark.parametrize(("change", "right"), CHANGES, ids=["ffn", "head 0", "head 3"])
@pytest.mark.quick(4)
def test_a_change_around_the_questions_acts(change: pellucid.Change, right: int) -> None:
    """The specimen's parts; a change of another model is the mutant, and leaves every answer."""
    with pellucid.watch(plain(), only=(), edit=[change]):
        assert quality(plain()).right == right
        assert quality(plain("capitals-llama")).right == 194
    assert quality(plain()).right == 194


def test_only_right_answers_count() -> None:
    """With the answers of the next country none of 194 is right; with several right answers each of them is one."""

    def shifted(book: Any, country: Any, relation: str, language: str) -> list[str]:
        keys = list(book.countries)
        return answers(book, book.countries[keys[(keys.index(country.key) + 1) % len(keys)]], relation, language)

    with swapped(qualities, "answers", shifted):
        assert quality(plain()).right == 0
    q, book = quality(plain(), "neighbours"), capitals()
    assert q.of == sum(bool(country.neighbours) for country in book.countries.values()) < 194
    with swapped(qualities, "answers", lambda *given: answers(*given)[:1]):
        assert quality(plain(), "neighbours").right < q.right
    for row in q.countries:
        firsts = {plain().tokenizer.encode(LEAD["en"] + name)[0] for name in answers(book, book.countries[row.country], "neighbours", "en")}
        assert row.right == (plain().tokenizer.encode(row.answered)[0] in firsts)


def test_prompts_are_of_the_form() -> None:
    q = quality(plain(), form="{country}'s capital is")
    assert {row.country: row.prompt for row in q.countries}["Gambia"] == "The Gambia's capital is"
    prompts = [row.prompt for row in quality(plain()).countries]
    assert prompts == [f"The capital of {name} is" for name in subjects().values()] and len(set(prompts)) == 194
    assert subjects(relation="country", language="zh")["France"] == "巴黎" and subjects(language="zh")["France"] == "法国"
    assert repr(q) == f"Quality({q.right} of 194)"


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"relation": "river"}, ("relation", "'river'", "capital, country")), ({"language": "fr"}, ("language", "'fr'", "en, zh")),
        ({"form": "The capital is"}, ("form", "{country}")), ({"form": "{country} {x}"}, ("form", "{country}")),
        ({"form": "The capital of {country} is", "relation": "country"}, ("form", "{capital}")),
    ],
)  # fmt: skip
def test_questions_that_cannot_be_asked(how: dict[str, str], named: tuple[str, ...]) -> None:
    with pytest.raises(UseError) as caught:
        quality(plain(), **how)
    assert all(word in str(caught.value) for word in named) and "\n" not in str(caught.value)


def test_models_that_cannot_be_asked() -> None:
    """An encoder-decoder, and an encoder that gives rows in place of logits."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    about = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
    for model in (pellucid.load("pellucid/capitals-t5"), make({**about, **sizes, "vocab_size": 40}, "rows")):
        with pytest.raises(UseError) as caught:
            quality(model)
        assert caught.value.key == "quality.model" and model.name in str(caught.value)
