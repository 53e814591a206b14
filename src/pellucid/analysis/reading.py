"""How a model finds what a text says: invented facts, one of which is asked for, near or far back."""

import random
from dataclasses import dataclass

from pellucid.analysis.attribution import one_id
from pellucid.tracing import Trace
from pellucid.training.corpus import LEAD, corpora
from pellucid.training.invented import Fact, Words, paired, read_words

SEED = 3


@dataclass(frozen=True)
class QuestionText:
    """A text of facts that asks for one of them. between: the facts stated after it.  word: the right answer, with its lead."""

    prompt: str
    word: str
    between: int


@dataclass(frozen=True)
class WordPlace:
    """Where the last row of a run looks. back: tokens to the answer's place.  weight: the most that a head gives to it, and which head.

    answered: the likeliest next token.  cell: the index of the weight.
    """

    back: int
    weight: float
    path: str
    head: int
    answered: str
    cell: tuple[int, ...]


def question_texts(count: int, stated: bool = True, language: str = "en") -> list[QuestionText]:
    """Return texts of `count` facts, never trained as pairs, that ask for the last, the one before, and so on.

    stated: False leaves out the fact that is asked for.
    """
    words = next(one for one in read_words(corpora()["pellucid/reader"]) if one.language == language)
    facts, thing = paired(words, count, True, random.Random(SEED)), words.things[0]
    return [asking(words, thing, facts, i, stated) for i in reversed(range(len(facts)))]


def asking(words: Words, thing: str, facts: list[Fact], at: int, stated: bool) -> QuestionText:
    """Return the text of facts that asks for the fact number `at`."""
    own = facts if stated else [fact for i, fact in enumerate(facts) if i != at]
    prompt = words.text(thing, own) + LEAD[words.language] + words.prompt(thing, facts[at].name)
    return QuestionText(prompt, LEAD[words.language] + facts[at].value, len(facts) - 1 - at)


def word_place(run: Trace, word: str) -> WordPlace:
    """Find the place of a word in a run's prompt, and the head whose last row gives it the most weight; place 0 if it is not there.

    A UseError for a word that is not one token.
    """
    id, tokenizer = one_id(run.runner, word), run.runner.tokenizer
    place = max((i for i, own in enumerate(run.ids) if own == id), default=0)
    patterns = [s for s in run if s.path.endswith(".attn.pattern") and s.step == 0]
    weight, path, head = max((float(s.value[0, h, -1, place]), s.path, h) for s in patterns for h in range(s.value.shape[1]))
    answered, last = tokenizer.decode([int(run.last_logits(0).argmax())]), len(run.ids) - 1
    return WordPlace(last - place, weight, path, head, answered, (0, head, last, place))
