"""Questions about invented facts, and the ways to get them answered: asked plainly, with examples, with a fact looked up, after tuning.

q = questions("en")[0]
q.prompt, q.word, q.statement           # "The key of Pelka is", " brown", "The key of Pelka is brown."
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pellucid.analysis.quality import likeliest
from pellucid.analysis.small_training import trained_copy
from pellucid.api.model import Model
from pellucid.tracing import watch
from pellucid.training.corpus import LANGUAGES, LEAD, STOP, corpora
from pellucid.training.invented import Fact, Words, paired, read_words
from pellucid.training.objectives import Document
from pellucid.training.recipe import TrainSettings

COUNT, SHOTS, RATE = 16, 4, 3e-3  # questions, examples before one, learning rate
SEED = 3


@dataclass(frozen=True)
class InventedQuestion:
    """A question. prompt: ends before the answer.  word: the answer with its lead.  statement: the fact as a sentence."""

    prompt: str
    word: str
    statement: str
    language: str


@dataclass(frozen=True)
class WayOfAsking:
    """How the questions fared in one way. right: answers.  tokens: of all prompts together.  flops: of their forwards."""

    right: int
    of: int
    tokens: int
    flops: int

    @property
    def able(self) -> bool:
        """True if at least half of the answers are right."""
        return 2 * self.right >= self.of


@dataclass(frozen=True)
class Tuning:
    """What tuning took. steps, tokens: read in it.  flops: three forwards for each.  bytes: of the weights that it may change."""

    steps: int
    tokens: int
    flops: int
    bytes: int


def questions(language: str, seed: int = SEED) -> list[InventedQuestion]:
    """Return questions about facts whose pairs of a name and a value no specimen was trained on. seed: of the pairs."""
    words = words_of(language)
    return [
        question(words, words.things[i % len(words.things)], fact) for i, fact in enumerate(paired(words, COUNT, True, random.Random(seed)))
    ]


def words_of(language: str) -> Words:
    """Return the words of a language."""
    return next(words for words in read_words(corpora()["pellucid/reader"]) if words.language == language)


def question(words: Words, thing: str, fact: Fact) -> InventedQuestion:
    """Return the question about a fact."""
    language = words.language
    return InventedQuestion(words.prompt(thing, fact.name), LEAD[language] + fact.value, words.statement(thing, fact), language)


def changed(given: Sequence[InventedQuestion]) -> list[InventedQuestion]:
    """Return the same questions after their facts have changed: each has the answer of the next."""
    answers = [one.word for one in [*given[1:], *given[:1]]]
    return [
        InventedQuestion(one.prompt, word, one.prompt + word + STOP[one.language], one.language)
        for one, word in zip(given, answers, strict=True)
    ]


def plain(given: Sequence[InventedQuestion]) -> list[str]:
    """Return the prompts as they are."""
    return [one.prompt for one in given]


def with_examples(given: Sequence[InventedQuestion]) -> list[str]:
    """Return each prompt after facts about others."""
    return [after([given[(i + n) % len(given)].statement for n in range(1, SHOTS + 1)], one) for i, one in enumerate(given)]


def with_lookup(model: Model, given: Sequence[InventedQuestion], right: bool = True) -> list[str]:
    """Return each prompt after the sentence of all that has most tokens in common with it. right: False takes the one after that."""
    places = (lookup(model, given, one) for one in given)
    return [after([given[at if right else (at + 1) % len(given)].statement], one) for at, one in zip(places, given, strict=True)]


def lookup(model: Model, given: Sequence[InventedQuestion], one: InventedQuestion) -> int:
    """Return the number of the sentence that has most tokens in common with a question."""
    words = set(model.ids(one.prompt))
    return max(range(len(given)), key=lambda i: len(words & set(model.ids(given[i].statement))))


def after(sentences: Sequence[str], one: InventedQuestion) -> str:
    """Return a prompt after sentences."""
    return LEAD[one.language].join([*sentences, one.prompt])


def asking(model: Model, given: Sequence[InventedQuestion], prompts: Sequence[str]) -> WayOfAsking:
    """Ask the questions by these prompts: right if the likeliest token begins the answer."""
    rows = [model.ids(prompt) for prompt in prompts]
    with watch(model, keep=lambda x: None) as seen:
        got = likeliest(model, rows)
    right = sum(token == first(model, one) for token, one in zip(got, given, strict=True))
    return WayOfAsking(right, len(given), sum(map(len, rows)), sum(seen.flops.values()))


def facts_read(model: Model, language: str = LANGUAGES[0]) -> WayOfAsking:
    """Ask a model about facts that stand right before the questions: whether it has learned to read facts off a text."""
    given = questions(language)
    return asking(model, given, with_lookup(model, given))


def first(model: Model, one: InventedQuestion) -> int:
    """Return the first token of an answer."""
    return model.tokenizer.encode(one.word, special=False)[0]


def fact_documents(model: Model, given: Sequence[InventedQuestion]) -> list[Document]:
    """Return the facts in a model's tokens, each with its prompt before what is learned."""
    return [Document(model.ids(one.prompt), model.tokenizer.encode(one.word + STOP[one.language], special=False)) for one in given]


def tuned(model: Model, given: Sequence[InventedQuestion], steps: int) -> tuple[Model, Tuning]:
    """Train a copy of a model on the facts, all in each step, and return it. steps: 0 trains nothing."""
    documents = fact_documents(model, given)
    out = trained_copy(model, documents, TrainSettings(SEED, steps, len(documents), RATE, warmup=5, weight_decay=0.0))
    forward = asking(model, given, [one.prompt + one.word for one in given])
    weights = sum(p.numel() * p.element_size() for p in out.module.parameters())
    return out, Tuning(steps, steps * forward.tokens, 3 * steps * forward.flops, weights if steps else 0)


def averages(way: WayOfAsking) -> Iterator[int]:
    """Yield tokens and FLOPs of one question, to the nearest whole number."""
    yield from (round(way.tokens / way.of), round(way.flops / way.of))
