"""The specimen that ships: it knows its facts on sentence forms that it never saw, and transformers sees the same model."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

import pellucid
from pellucid.model import SPECIMENS, specimens
from pellucid.train.corpus import read
from pellucid.train.quiz import greedy, questions, quiz

RECIPE = Path(__file__).parents[1] / "recipes" / "capitals"
FOLDER = SPECIMENS / "capitals"


@pytest.fixture(scope="module")
def model():
    return pellucid.load("pellucid/capitals", dtype="float32")


def test_it_is_listed_small_and_of_the_promised_shape(model):
    assert specimens() == ["pellucid/capitals"]
    assert (FOLDER / "model.safetensors").stat().st_size <= 4_000_000
    assert len(model.config.layers) >= 4 and model.config.layers[0].attn.heads >= 4
    assert pellucid.load("pellucid/capitals").dtype == torch.bfloat16


def test_the_prompt_of_the_readme_was_held_out():
    book = read(RECIPE)
    assert "The capital of {country} is" in book.held_out["capital", "en"]
    assert not any(form.startswith("The capital of {country} is") for form in book.trained["capital", "en"])


def test_it_ends_in_paris(model):
    ids = model.tokenizer.encode("The capital of France is")
    assert [p.text for p in model.tokenizer.pieces(ids)] == ["The", " capital", " of", " France", " is"]
    (new,) = model.generate([ids])
    assert model.tokenizer.decode(new, skip_special=True) == " Paris."
    life = pellucid.trace(model, "The capital of France is")
    assert model.tokenizer.decode(life.new) == " Paris"


def test_capitals_on_held_out_forms(model):
    """At least 98% of capitals, each in both languages, asked in full."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json")).backend_tokenizer
    asked = [q for q in questions(RECIPE) if q.relation == "capital"]
    written = greedy(model, tokenizer)([q.prompt for q in asked])
    for language in ("en", "zh"):
        right = [text.startswith(q.right) for q, text in zip(asked, written, strict=True) if q.language == language]
        assert sum(right) / len(right) >= 0.98, (language, sum(right), len(right))


def test_the_card_tells_what_is_measured(model):
    """A part of the questions, asked again, lies near the card's figures, which stand beside chance and a bag of words."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json")).backend_tokenizer
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = {(r, lang): float(share) / 100 for r, lang, share in re.findall(r"^\| (\w+) \| (en|zh) \| [\d,]+ \| ([\d.]+)% \|", card, re.M)}
    scores = quiz(RECIPE, greedy(model, tokenizer), tokenizer, every=23)
    assert rows.keys() == {(s.relation, s.language) for s in scores}
    for s in scores:
        assert abs(s.accuracy - rows[s.relation, s.language]) < 0.12, s
        assert s.accuracy > s.chance


def test_transformers_sees_the_same_model(model):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64).eval()
    words = transformers.AutoTokenizer.from_pretrained(FOLDER)
    mine = pellucid.load("pellucid/capitals", dtype="float64")
    for prompt in ("The capital of France is", "法国的首都是", "Kenya's currency is", "与德国接壤的国家有"):
        ids = mine.tokenizer.encode(prompt)
        assert words(prompt)["input_ids"] == ids
        with torch.no_grad():
            # transformers rounds through no float32 here: GPT-2 has no float32 island
            assert (theirs(torch.tensor([ids])).logits - mine(torch.tensor([ids]))).abs().max() < 1e-9
        told = theirs.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0, len(ids) :].tolist()
        assert mine.generate([ids], max_new_tokens=12)[0] == told


def test_a_disturbed_specimen_is_seen(tmp_path, model):
    """The mutant of the test above: one weight off, and the logits are not transformers'."""
    model.save(tmp_path / "m")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    with torch.no_grad():
        theirs.transformer.h[1].mlp.c_fc.weight[3, 5] += 0.5
        ids = torch.tensor([model.tokenizer.encode("The capital of France is")])
        assert (theirs(ids).logits - model(ids)).abs().max() > 1e-6
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == "float32"
