"""Questions of two steps: the first answer is what generation gives, and the second step reads it."""

import pytest
import torch

import pellucid
from pellucid.analysis import chaining
from pellucid.analysis.chaining import answers, at_once, in_steps, rightly, sentence
from pellucid.api.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float32")


def test_a_sentence_ends_at_its_stop() -> None:
    assert sentence(" the Bahamas. The") == "the Bahamas" and sentence(" Chad") == "Chad"


def test_answers_are_what_is_generated(model: Model) -> None:
    prompts = ["Nassau is the capital of", "Paris is the capital of"]
    with torch.no_grad():
        assert answers(model, prompts) == [sentence(model.generate(prompt, 12)) for prompt in prompts] == ["the Bahamas", "France"]


def test_right_is_counted_by_the_token(model: Model) -> None:
    right = [model.tokenizer.encode(f" {name}")[0] for name in ("Europe", "Europe")]
    with torch.no_grad():
        own = rightly(model, ["The continent of France is", "The continent of Japan is"], right)
    assert (own.right, own.of) == (1, 2)


def test_the_second_step_needs_the_first(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        own = in_steps(model)
        assert at_once(model).right < in_steps(model, carry=False).right < own.right == own.of
        monkeypatch.setattr(chaining, "sentence", lambda text: "France")
        assert in_steps(model).right < own.right
