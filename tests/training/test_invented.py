"""The corpus of invented facts: a text answers itself, held-out pairs are never trained, every field is checked."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import TrainError
from pellucid.training import invented, run_recipe
from pellucid.training.corpus import CORPORA, LANGUAGES, LEAD, STOP, train_tokenizer
from pellucid.training.invented import QUIZZED, Invented, copies, examples, most_facts, paired, quizzed, read_words, word_pieces
from pellucid.training.objectives import IGNORED, Causal, Document, Prefix
from pellucid.training.quiz import quiz
from pellucid.training.recipe import read_recipe
from test_recipe import written
from tiny import swapped
from training import silent

FOLDER = CORPORA / "reader"
DATA = Invented(FOLDER, texts=400, facts=8, copies=100, length=12)
WORDS = dict(zip(LANGUAGES, read_words(FOLDER), strict=True))
TOKENIZER = train_tokenizer(word_pieces(DATA), 1024)
STATED = {"en": r"The (\w+) of (\w+) is (\w+)\.", "zh": r"(\w+?)的(\w+?)是(\w+?)。"}


def pairs(text: str, language: str) -> list[tuple[str, str]]:
    """The names and values that a text states, read by a pattern of its own."""
    rows = re.findall(STATED[language], text)
    return [(name, value) for _, name, value in rows] if language == "en" else [(name, value) for name, _, value in rows]


def wrong(data: Invented) -> int:
    """How many texts break a promise: one value for a name and one name for a value, asked as stated, and no pair on the other side."""
    count, sides = 0, (set[tuple[str, str]](), set[tuple[str, str]]())
    for held_out, several in ((0, examples(data, 3)), (1, (e for _, e in quizzed(data)))):
        for e in several:
            stated, again = pairs(e.stated, e.language), pairs(e.again, e.language)
            sides[held_out].update(stated)
            name, value = again[0]
            right = len({n for n, _ in stated}) == len({v for _, v in stated}) == len(stated) and {*again} == {*stated}
            right &= e.prompt.startswith(e.stated) and name in e.prompt[len(e.stated) :]
            right &= e.answer == LEAD[e.language] + value + STOP[e.language]
            count += not right
    return count + len(sides[0] & sides[1])


def test_a_text_answers_itself() -> None:
    """Both languages, all numbers of facts; of all pairs a fifth is held out."""
    assert wrong(DATA) == 0
    given = [*examples(DATA, 3)]
    assert len(given) == 400 and {e.language for e in given} == {*LANGUAGES}
    assert {len(pairs(e.stated, e.language)) for e in given} == set(range(2, 9))
    assert [n for n, e in quizzed(DATA) if n != len(pairs(e.stated, e.language))] == []
    assert {n for n, _ in quizzed(replace(DATA, facts=5))} == {n for n in QUIZZED if n <= 5}


def test_broken_texts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants: held-out pairs that are trained, one value for several names, questions with another answer."""
    with swapped(invented, "paired", lambda words, count, held_out, draw: paired(words, count, False, draw)):
        assert wrong(DATA) > 0

    def alike(words: Any, count: int, held_out: bool, draw: random.Random) -> Any:
        facts = paired(words, count, held_out, draw)
        return [fact._replace(value=facts[0].value) for fact in facts]

    with swapped(invented, "paired", alike):
        assert wrong(DATA) > 0
    with swapped(
        invented.Words, "text", lambda self, thing, facts: " ".join(self.statement(thing, f._replace(name="Alda")) for f in facts)
    ):
        assert wrong(DATA) > 0


def test_texts_follow_from_the_seed() -> None:
    assert [*examples(DATA, 1)] == [*examples(DATA, 1)] != [*examples(DATA, 2)]
    assert [*copies(DATA, 50, 1)] == [*copies(DATA, 50, 1)] != [*copies(DATA, 50, 2)]
    assert [*quizzed(DATA)] == [*quizzed(DATA)]


def test_every_word_is_one_token() -> None:
    """So that an answer is one prediction, and one row of a pattern says where it was read. All of the vocabulary is read again."""
    for language, words in WORDS.items():
        for word in (*words.names, *words.things, *words.values):
            assert len(TOKENIZER.encode(LEAD[language] + word).ids) == 1, word
    ids = {i for given, _ in copies(replace(DATA, copies=2000), TOKENIZER.get_vocab_size(), 1) for i in given}
    assert ids == set(range(TOKENIZER.get_vocab_size()))
    for given, again in copies(DATA, 50, 1):
        assert len(given) + len(again) == 24 and all(again[i] == given[i % len(given)] for i in range(len(again)))
    assert {len(given) for given, _ in copies(DATA, 50, 1)} == set(range(2, 13))


@pytest.mark.parametrize("objective", [Causal, Prefix])
def test_only_what_can_be_known_carries_loss(objective: type[Causal]) -> None:
    """The texts' second half and the repeats; a document's parts are its text, token by token, and the end."""
    made = objective(TOKENIZER)
    documents = made.documents(DATA, 3)
    assert len(documents) == 500
    for e, (given, target, *_) in zip(examples(DATA, 3), documents, strict=False):
        assert TOKENIZER.decode(given) == e.stated and TOKENIZER.decode(target[:-1]) == e.again and target[-1] == made.end
    for (ids, again), document in zip(copies(DATA, TOKENIZER.get_vocab_size(), 3), documents[400:], strict=True):
        assert document == Document(ids, again)
    batch = made.batch(documents[:7])
    assert (batch.targets != IGNORED).sum() == sum(len(d.target) for d in documents[:7])
    assert dict(made.learnt(DATA, 3)) == {e.prompt: e.answer for e in examples(DATA, 3)}


def test_the_quiz_counts_answers() -> None:
    """One that reads is right everywhere, one that takes the last value about once in the number of facts."""
    questions = Causal(TOKENIZER).questions(DATA)
    assert len(questions) == len(QUIZZED) * len(LANGUAGES) * invented.ASKED

    def reading(prompts: list[str]) -> list[str]:
        right = {q.prompt: q.right[0] for q in questions}
        return [right[prompt] for prompt in prompts]

    def latest(prompts: list[str]) -> list[str]:
        out = []
        for prompt in prompts:
            language = "en" if prompt.isascii() else "zh"
            out.append(LEAD[language] + pairs(prompt, language)[-1][1] + STOP[language])
        return out

    learnt = list(Causal(TOKENIZER).learnt(DATA, 1))
    assert all(s.accuracy == 1 and s.chance == 0.05 for s in quiz(questions, learnt, reading, TOKENIZER))
    for s in quiz(questions, learnt, latest, TOKENIZER):
        assert abs(s.accuracy - 1 / int(s.relation)) < 0.12 and s.questions == invented.ASKED


DATA_FIELDS = {"texts": "40", "facts": "4", "copies": "20", "length": "6"}


def recipe_of(path: Path, **changed: str | None) -> Path:
    """A recipe over these words with some fields of [data] changed; a name without data__ is a field of the recipe."""
    own = {f"data__{k}": v for k, v in DATA_FIELDS.items()} | {"folder": '"pellucid/reader"', "size": "700"}
    return written(path, **{k: v for k, v in {**own, **changed}.items() if v is not None})


@pytest.mark.parametrize(
    ("named", "changed"),
    [
        ("data.texts", {"data__texts": "0"}), ("data.texts", {"data__texts": None}), ("data.texts", {"data__texts": "1.5"}),
        ("data.texts", {"data__texts": "true"}), ("data.facts", {"data__facts": "1"}), ("int 2 … 10", {"data__facts": "11"}),
        ("data.copies", {"data__copies": "-1"}), ("data.copies", {"data__copies": "9999999999"}), ("data.length", {"data__length": '"6"'}),
        ("data.many", {"data__many": "1"}), ("objective", {"objective": '"masked"'}), ("objective", {"objective": '"translation"'}),
    ],
)  # fmt: skip
def test_fields_of_the_recipe(named: str, changed: dict[str, str | None], tmp_path: Path) -> None:
    data = read_recipe(recipe_of(tmp_path / "good.toml")).data
    assert data == Invented(FOLDER, 40, 4, 20, 6) and most_facts(FOLDER) == 10
    with pytest.raises(TrainError) as caught:
        read_recipe(recipe_of(tmp_path / "r.toml", **changed))
    assert named in str(caught.value) and "r.toml" in str(caught.value) and "\n" not in str(caught.value)


WORDS_AS_THEY_ARE = json.loads((FOLDER / "words.json").read_text(encoding="utf-8"))
BROKEN = [
    ("names.en", {"names": {"zh": ["阿达"]}}), ("names.zh", {"names": {"en": ["Alda"], "zh": []}}), ("things.en", {"things": None}),
    ("values.en", {"values": {"en": ["red", "red"], "zh": ["红色"]}}), ("values.en", {"values": {"en": ["red", 3], "zh": ["红色"]}}),
    ("values.zh", {"values": {"en": ["red"], "zh": [""]}}), ("forms.en", {"forms": {"en": "The {thing} is", "zh": "{name}的{thing}是"}}),
    ("forms.zh", {"forms": {"en": "The {thing} of {name} is", "zh": "{name}的{thing}{x}是"}}), ("forms.en", {"forms": []}),
]  # fmt: skip


@pytest.mark.parametrize(("named", "changed"), BROKEN)
def test_fields_of_the_words(named: str, changed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text(json.dumps({**WORDS_AS_THEY_ARE, **changed}), encoding="utf-8")
    with pytest.raises(TrainError) as caught:
        read_words(tmp_path)
    assert caught.value.key in ("corpus.field", "corpus.form") and named in str(caught.value) and "words.json" in str(caught.value)


def test_a_recipe_of_these_makes_a_model(tmp_path: Path) -> None:
    """From the recipe to the card, which has a row for each number of facts and says what was read."""
    out = run_recipe(recipe_of(tmp_path / "r.toml", steps="2", n_positions="128"), tmp_path / "run", False, 1, silent)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.count("| 2 | en | 200 |") == card.count("| 4 | zh | 200 |") == 2 and "| 8 |" not in card and "capitals" not in card
