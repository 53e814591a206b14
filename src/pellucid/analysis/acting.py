"""Reasoning and acting in turns (ReAct, arXiv 2210.03629): the model writes a word, a notebook is asked by that word, the model goes on.

The notebook is a list of sentences, searched by their beginnings; the model sees only what it has asked for. A question takes two notes:
the second is notes by the word that the model read off the first.

    The key of Alda is red. | The key of Alda is [red] | The door of red is gold. | The door of red is [gold]
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pellucid.analysis.invented_questions import words_of
from pellucid.api.model import Model
from pellucid.tracing import watch
from pellucid.training.corpus import LEAD, STOP
from pellucid.training.invented import Fact, Words, paired

ASKED, SEED, NEW = 12, 7, 4  # questions, of their words, and tokens of the longest word
WAYS = ("plain", "once", "all", "turns")


@dataclass(frozen=True)
class Chain:
    """A question of two notes. name: the first is asked for by it.  between: the word of the first that leads to the second."""

    name: str
    between: str
    answer: str


@dataclass(frozen=True)
class ActingStep:
    """One step. kind: "asks", "notes" or "writes".  tokens: of the text after it.  rows: that a cache leaves to compute."""

    kind: str
    text: str
    tokens: int
    rows: int


@dataclass(frozen=True)
class Episode:
    """A question as it went. steps: in order.  right: the last word is the answer.  tokens: of the whole text.

    again: rows without a cache, which reads the text anew for each word.  flops: of the whole text, each row once.
    """

    steps: Sequence[ActingStep]
    right: bool
    again: int
    flops: int

    @property
    def prompt(self) -> str:
        """Return the text up to the last word that was written."""
        return "".join(step.text for step in self.steps[:-1])

    @property
    def tokens(self) -> int:
        """Return the tokens of the text at the end."""
        return self.steps[-1].tokens


def chains(words: Words) -> list[Chain]:
    """Return the questions. No word leads to two notes."""
    draw = random.Random(SEED)
    known = paired(words, ASKED, True, draw)
    last = [fact.value for fact in known]
    return [Chain(fact.name, fact.value, answer) for fact, answer in zip(known, [*last[1:], last[0]], strict=True)]


def notebook(words: Words, given: Sequence[Chain]) -> list[str]:
    """Return the notes of all questions."""
    first, second = words.things[:2]
    return [words.statement(first, Fact(c.name, c.between)) for c in given] + [
        words.statement(second, Fact(c.between, c.answer)) for c in given
    ]


class Acting:
    """One question, step by step. notes: what can be asked for.  carry: False asks for the second note by the question's own name."""

    def __init__(self, model: Model, words: Words, notes: Sequence[str], carry: bool = True) -> None:
        self.model, self.words, self.notes, self.carry = model, words, notes, carry
        self.text, self.steps, self.again = "", list[ActingStep](), 0

    def add(self, kind: str, text: str) -> None:
        """Append a text, and note what a cache leaves to compute of it: its own rows."""
        before = len(self.model.ids(self.text)) if self.text else 0
        text = text if not self.text or kind == "writes" else LEAD[self.words.language] + text
        self.text += text
        tokens = len(self.model.ids(self.text))
        self.steps.append(ActingStep(kind, text, tokens, tokens - before))

    def cost(self) -> int:
        """Return the FLOPs of the text's rows, each computed once, and of one row's logits."""
        ids = torch.tensor([self.model.ids(self.text)], device=self.model.device)
        with watch(self.model, keep=lambda x: None) as seen, torch.no_grad():
            self.model(ids, rows=-1)
        return sum(seen.flops.values())

    def search(self, prompt: str) -> None:
        """Ask the notebook: the note that begins as the prompt does is appended, if there is one."""
        notes = [note for note in self.notes if note.startswith(prompt)]
        for note in notes[:1]:
            self.add("notes", note)

    def write(self, prompt: str) -> str:
        """Ask, and let the model write up to the end of the sentence, greedily. Returns its words."""
        self.add("asks", prompt)
        ids = self.model.ids(self.text)
        start = len(ids)
        for _ in range(NEW):
            self.again += len(ids)
            with torch.no_grad():
                ids.append(int(self.model(torch.tensor([ids], device=self.model.device), rows=-1)[0, -1].argmax()))
            if STOP[self.words.language] in self.model.tokenizer.decode(ids[-1:]):
                break
        written = self.model.tokenizer.decode(ids[start:]).partition(STOP[self.words.language])[0]
        self.add("writes", written + STOP[self.words.language])
        return written.strip()

    def run(self, chain: Chain, way: str) -> Episode:
        """Answer a question in one of WAYS: plain asks no note, once one, all has every note from the start, turns asks twice."""
        first, second = self.words.things[:2]
        if way == "all":
            for note in self.notes:
                self.add("notes", note)
        if way in ("once", "turns"):
            self.search(self.words.prompt(first, chain.name))
        word = self.write(self.words.prompt(first, chain.name))
        subject = word if self.carry else chain.name
        if way == "turns":
            self.search(self.words.prompt(second, subject))
        answer = self.write(self.words.prompt(second, subject))
        return Episode(tuple(self.steps), answer == chain.answer, self.again, self.cost())


@dataclass(frozen=True)
class WayOfActing:
    """All questions in one way. right, of: answers.  tokens, flops: of a question on average.  again: rows of one without a cache."""

    right: int
    of: int
    tokens: int
    flops: int
    again: int

    @property
    def able(self) -> bool:
        """True if at least half of the answers are right."""
        return 2 * self.right >= self.of


def acted(model: Model, language: str, way: str, carry: bool = True) -> tuple[WayOfActing, Episode]:
    """Answer every question in one way; return how they fared, and the first as it went."""
    words = words_of(language)
    given = chains(words)
    notes = notebook(words, given)
    every = [Acting(model, words, notes, carry).run(chain, way) for chain in given]
    tokens, flops, again = (round(sum(values) / len(every)) for values in zip(*((e.tokens, e.flops, e.again) for e in every), strict=True))
    return WayOfActing(sum(e.right for e in every), len(every), tokens, flops, again), every[0]
