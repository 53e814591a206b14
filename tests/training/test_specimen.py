"""The specimens that ship: each knows its facts on sentence forms that it never saw, or reads them, and transformers sees the same model.

PELLUCID_FULL=1 asks three times as many questions.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

import pellucid
from judge import promoted
from pellucid import config as c
from pellucid.api.model import SPECIMENS, Model, specimens
from pellucid.batch.step import Step
from pellucid.training.corpus import CORPORA, read
from pellucid.training.objectives import OBJECTIVES, Objective
from pellucid.training.quiz import Question, quiz
from pellucid.training.recipe import Recipe, read_recipe
from pellucid.training.texts import Texts
from training import ROOT

READ = {path.stem: read_recipe(path) for path in sorted((ROOT / "recipes").glob("*.toml"))}
RECIPES = {
    name: recipe for name, recipe in READ.items() if recipe.aim is None and recipe.watch is None and not isinstance(recipe.data, Texts)
}  # texts make no specimen, and what is recorded is a run
DATA = CORPORA / "capitals"
OF_CAPITALS = [name for name, recipe in RECIPES.items() if recipe.data == DATA]
FULL = bool(os.environ.get("PELLUCID_FULL"))
PROMPTS = ("The capital of France is", "法国的首都是", "Kenya's currency is", "与德国接壤的国家有")
ASKED = {
    "translation": ("The capital of France is Paris.", "I know that Chile has a border with Peru.", "Q: Lagos belongs to which country?"),
    "masked": (
        "The capital of France is [MASK].",
        "法国的首都是[MASK]。",
        "[MASK] lies in Europe.",
        "Kenya's currency is the [MASK] [MASK].",
    ),
    "reader": (
        "The key of Alda is red. The key of Borin is blue. The key of Alda is",
        "阿达的门是红色。博林的门是蓝色。多娃的门是白色。博林的门是",
    ),
}
SAID = {"translation": "法国的首都是巴黎。", "reader": " red."}
ENOUGH = {"translation": 0.95, "masked": 0.95}
KINDS = {"translation": "AutoModelForSeq2SeqLM", "masked": "AutoModelForMaskedLM"}


@dataclass
class Specimen:
    """One of them: its recipe, its folder, how it is asked, and the model in float32."""

    recipe: Recipe
    folder: Path
    objective: Objective
    model: Model

    @property
    def name(self) -> str:
        return f"pellucid/{self.recipe.name}"

    @property
    def prompts(self) -> tuple[str, ...]:
        return ASKED.get(self.recipe.name, ASKED.get(self.recipe.objective, PROMPTS))

    @cached_property
    def questions(self) -> list[Question]:
        return self.objective.questions(self.recipe.data)

    def ids(self, prompt: str) -> list[int]:
        return self.model.tokenizer.encode(prompt, parse="[MASK]" in prompt)


@cache
def specimen(name: str) -> Specimen:
    folder = SPECIMENS / name
    objective = OBJECTIVES[RECIPES[name].objective](Tokenizer.from_file(str(folder / "tokenizer.json")))
    return Specimen(RECIPES[name], folder, objective, pellucid.load(f"pellucid/{name}", dtype="float32"))


@pytest.fixture(params=OF_CAPITALS)
def capitals(request: pytest.FixtureRequest) -> Specimen:
    return specimen(request.param)


@pytest.fixture(scope="module")
def reader() -> Specimen:
    return specimen("reader")


@pytest.fixture(params=RECIPES)
def one(request: pytest.FixtureRequest) -> Specimen:
    return specimen(request.param)


def judge(s: Specimen) -> Any:
    """transformers' reading of the folder, in float64 with its float32 islands promoted."""
    how = {"dtype": torch.float64, "attn_implementation": "eager", "experts_implementation": "eager"}
    kind = getattr(transformers, KINDS.get(s.recipe.objective, "AutoModelForCausalLM"))
    with promoted():
        return kind.from_pretrained(s.folder, **how).eval()


def judge_logits(s: Specimen, hf: Any, ids: list[int], after: list[int]) -> Tensor:
    """transformers' logits [T V] of a prompt and what was written after it. It knows no prefix: there an additive mask tells it."""
    how: dict[str, Any] = {"input_ids": torch.tensor([[*ids, *after]])}
    if s.recipe.objective == "translation":
        how = {"input_ids": torch.tensor([ids]), "decoder_input_ids": torch.tensor([[s.objective.end, *after]])}
    elif s.recipe.objective == "prefix":
        at = torch.arange(len(ids) + len(after))
        seen = (at <= at[:, None]) | (at < len(ids))
        dtype = next(hf.parameters()).dtype
        how["attention_mask"] = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]
        how["position_ids"] = at[None]
    with promoted(), torch.no_grad():
        return hf(**how).logits[0]


def our_logits(s: Specimen, model: Any, ids: list[int], after: list[int]) -> Tensor:
    """Our logits [T V] of the same."""
    rows = torch.tensor([[*ids, *after]])
    with torch.no_grad():
        if s.recipe.objective == "translation":
            out: Tensor = model(torch.tensor([ids]), torch.tensor([[s.objective.end, *after]]))
        else:
            out = model(rows, prefix=len(ids)) if s.recipe.objective == "prefix" else model(rows)
    return out[0]


def test_they_are_listed_small_and_of_the_promised_shape() -> None:
    """4 MB for the first, 2.5 for the others, 16 for all of them; four layers of four heads, or three and three; two read."""
    assert specimens() == sorted(f"pellucid/{name}" for name in RECIPES)
    for name in RECIPES:
        s = specimen(name)
        assert (s.folder / "model.safetensors").stat().st_size <= (4_000_000 if name == "capitals" else 2_500_000)
        cfg = s.model.config
        assert len(cfg.layers) + len(cfg.encoder or ()) >= (2 if name == "reader" else 4) and cfg.layers[0].attn.heads >= 4
        assert pellucid.load(s.name).precision.stored == torch.bfloat16
        assert {f.stat().st_mode & 0o777 for f in s.folder.iterdir()} == {0o644}
    folders = [SPECIMENS / name.removeprefix("pellucid/") for name in specimens()]
    assert sum(f.stat().st_size for folder in folders for f in folder.rglob("*") if f.is_file()) <= 16_000_000


def test_each_shows_what_it_is_there_for() -> None:
    """Grouped heads and rotary positions; a latent cache and a corrected mixture; a prefix; encoder and decoder; blanks; a window."""
    llama, deepseek, prefix, t5, bert = (specimen(f"capitals-{n}").model.config for n in ("llama", "deepseek", "prefix", "t5", "bert"))
    attn, latent, moe = llama.layers[0].attn, deepseek.layers[0].attn, deepseek.layers[-1].ffn
    assert isinstance(attn, c.Attention) and 1 < attn.kv_heads < attn.heads and attn.rope and llama.norm == "rms"
    assert isinstance(latent, c.Latent) and isinstance(moe, c.Moe) and moe.shared and moe.affinity == "sigmoid"
    corrections = [b for path, b in specimen("capitals-deepseek").model.module.named_buffers() if path.endswith("correction")]
    assert len(corrections) == 3 and all(b.dtype == torch.float32 and float(b.abs().max()) > 0 for b in corrections)
    assert prefix.prefix and not llama.prefix and t5.encoder and not bert.layers[0].attn.causal  # type: ignore[union-attr]
    assert [layer.attn.window for layer in specimen("reader").model.config.layers] == [5, None]  # type: ignore[union-attr]


def test_the_prompt_of_the_readme_was_held_out() -> None:
    book = read(DATA)
    assert "The capital of {country} is" in book.held_out["capital", "en"]
    assert not any(form.startswith("The capital of {country} is") for form in book.trained["capital", "en"])


def test_it_ends_in_paris(one: Specimen) -> None:
    """Each in its own way, and in a trace where there is a next token."""
    ids, wanted = one.ids(one.prompts[0]), SAID.get(one.recipe.name, SAID.get(one.recipe.objective, " Paris."))
    (written,) = one.objective.complete(one.model.module)([one.prompts[0]])
    assert written == wanted or (one.recipe.name == "reader" and written.startswith(wanted))  # it goes on with other facts
    if one.recipe.objective == "masked":
        return
    (new,) = one.model.generate([ids])
    assert one.model.tokenizer.decode(new, skip_special=True)[: len(wanted)] == wanted
    recorded = pellucid.trace(one.model, one.prompts[0])
    assert wanted.startswith(one.model.tokenizer.decode(recorded.new))
    pieces = [p.text for p in one.model.tokenizer.pieces(ids)]
    assert "".join(pieces[:5]) == one.prompts[0][: len("".join(pieces[:5]))] and pieces[0] == "The"


@pytest.mark.quick(4)
def test_capitals_on_held_out_forms(capitals: Specimen) -> None:
    """At least 98% of capitals (95% of translations and blanks), in both languages where it is asked in both."""
    questions = [q for q in capitals.questions if q.relation == "capital"][:: 3 if FULL else 9]
    written = capitals.objective.complete(capitals.model.module)([q.prompt for q in questions])
    for language in {q.language for q in questions}:
        right = [text.startswith(q.right) for q, text in zip(questions, written, strict=True) if q.language == language]
        assert sum(right) / len(right) >= ENOUGH.get(capitals.recipe.objective, 0.98), (language, sum(right), len(right))


def read_right(s: Specimen, *changes: pellucid.Change) -> float:
    """Return the share of questions about 8 facts whose first token is right, with these changes."""
    questions = [q for q in s.questions if q.relation == "8"][::4]
    right = 0
    with torch.no_grad(), pellucid.watch(s.model, only=(), edit=changes):
        for q in questions:
            (wanted, *_) = s.ids(q.right[0])
            right += int(s.model(torch.tensor([s.ids(q.prompt)]))[0, -1].argmax()) == wanted
    return right / len(questions)


def test_it_reads(reader: Specimen) -> None:
    """Of 8 facts, in pairs that were never trained, it finds the one that is asked for; without the attention of either block it cannot."""
    assert read_right(reader) >= 0.95
    assert read_right(reader, pellucid.zero("layers.0.attn")) < 0.3
    assert read_right(reader, pellucid.zero("layers.1.attn")) < 0.3


def test_its_heads_copy(reader: Specimen) -> None:
    """On random tokens that are read twice; a specimen that knows its facts by heart is the mutant."""
    scores = pellucid.heads(reader.model)
    assert scores.best("induction", 1)[0][0] == "layers.1.attn.pattern" and scores.best("induction", 1)[0][2] >= 0.4
    assert scores.best("previous", 1)[0][0] == "layers.0.attn.pattern" and scores.best("previous", 1)[0][2] >= 0.4
    assert pellucid.heads(specimen("capitals-llama").model).best("induction", 1)[0][2] < 0.2


@pytest.mark.quick(5)
def test_the_card_tells_what_is_measured(one: Specimen) -> None:
    """A part of the questions, asked again, lies near the card's figures, which stand beside chance and a bag of words."""
    card = (one.folder / "README.md").read_text(encoding="utf-8")
    rows = {(r, lang): float(share) / 100 for r, lang, share in re.findall(r"^\| (\w+) \| (en|zh) \| [\d,]+ \| ([\d.]+)% \|", card, re.M)}
    part = (23 if FULL else 71) if len(one.questions) > 10_000 else 3
    questions, learnt = one.questions[::part], list(islice(one.objective.learnt(one.recipe.data), 4000))
    scores = quiz(questions, learnt, one.objective.complete(one.model.module), one.objective.tokenizer)
    assert rows.keys() == {(s.relation, s.language) for s in scores}
    for s in scores:
        assert abs(s.accuracy - rows[s.relation, s.language]) < 0.12, s
        assert s.accuracy > s.chance
    assert f"{one.model.num_parameters():,}" in card and one.recipe.path.name in card


@pytest.mark.quick(4)
def test_transformers_sees_the_same_model(one: Specimen) -> None:
    """The same ids, logits in float64, and tokens, each the likeliest."""
    hf, words = judge(one), transformers.AutoTokenizer.from_pretrained(one.folder)
    mine = pellucid.load(one.name, dtype="float64")
    for prompt in one.prompts:
        ids, after = one.ids(prompt), []
        assert words(prompt)["input_ids"] == ids
        assert (judge_logits(one, hf, ids, after) - our_logits(one, mine, ids, after)).abs().max() < 1e-9
        if one.recipe.objective == "masked":
            continue
        while len(after) < 12 and after[-1:] != [one.objective.end]:
            after.append(int(judge_logits(one, hf, ids, after)[-1].argmax()))
        assert mine.generate([ids], max_new_tokens=12)[0] == after
        assert (judge_logits(one, hf, ids, after) - our_logits(one, mine, ids, after)).abs().max() < 1e-9


@pytest.mark.quick(4)
def test_a_disturbed_specimen_is_seen(one: Specimen) -> None:
    """The mutants of the above: a prompt that is only seen backwards, or one weight off, and the logits are not transformers'."""
    ids, hf, mine = one.ids(one.prompts[0]), judge(one), pellucid.load(one.name, dtype="float64")
    if one.recipe.objective == "prefix":
        rows = torch.tensor([ids])
        with torch.no_grad():
            assert (mine.module(rows, Step.plain(rows))[0] - judge_logits(one, hf, ids, [])).abs().max() > 1e-2
    with torch.no_grad():
        weight = next(p for n, p in hf.named_parameters() if ".1." in n and p.ndim == 2)
        weight[3, 5] += 0.5
    assert (judge_logits(one, hf, ids, []) - our_logits(one, mine, ids, [])).abs().max() > 1e-6


def test_a_specimen_is_saved_as_it_came(one: Specimen, tmp_path: Path) -> None:
    """transformers reads what we write, and finds the same model."""
    one.model.save(tmp_path / "m")
    kind = getattr(transformers, KINDS.get(one.recipe.objective, "AutoModelForCausalLM"))
    hf = kind.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["dtype"] == "float32" and config["architectures"] == [type(hf).__name__]
