"""The quiz: every held-out form is completed greedily, and the completion is compared with the right answers word for word.

    prompt "The capital of France is"  ->  " Paris." is right, whatever follows; " Paris Saint" and " Lyon." are wrong

Each accuracy is compared with two baselines: chance, and naive Bayes over the prompt's pieces, which learns from the same sentences
without the order of words.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from pellucid.training import invented
from pellucid.training.corpus import END_OF_TEXT, LEAD, STOP, answers, read, sentences

Complete = Callable[[list[str]], list[str]]
"""A function from prompts to greedy completions, up to the end of text or at least as long as the longest answer."""


@dataclass(frozen=True)
class Question:
    """One held-out prompt and its right answers, each with lead and stop, such as (" Paris.",)."""

    prompt: str
    right: tuple[str, ...]
    relation: str
    language: str


@dataclass(frozen=True)
class Score:
    """The share of right completions for one relation in one language. chance, bag_of_words: those of the baselines."""

    relation: str
    language: str
    questions: int
    right: int
    chance: float
    bag_of_words: float

    @property
    def accuracy(self) -> float:
        """Return the share of questions answered right, 0 to 1."""
        return self.right / self.questions


def questions(data: Path | invented.Invented) -> list[Question]:
    """Return every held-out prompt once; a country with several neighbours has as many right answers. Of invented facts, the relation is
    how many the text states.
    """
    if isinstance(data, invented.Invented):
        return [Question(e.prompt, (e.answer,), str(count), e.language) for count, e in invented.quizzed(data)]
    book, by_prompt = read(data), {}
    for sentence in sentences(data, held_out=True):
        lead, stop = LEAD[sentence.language], STOP[sentence.language]
        names = answers(book, book.countries[sentence.country], sentence.relation, sentence.language)
        by_prompt[sentence.prompt] = Question(
            sentence.prompt, tuple(lead + name + stop for name in names), sentence.relation, sentence.language
        )
    return list(by_prompt.values())


def quiz(questions: list[Question], learnt: Iterable[tuple[str, str]], complete: Complete, tokenizer: Tokenizer) -> list[Score]:
    """Complete each question; a completion is right if it starts with a right answer and its stop, exactly.

    learnt: the prompts and answers that were trained, for the bag of words.
    """
    written = complete([question.prompt for question in questions])
    bag = BagOfWords(learnt, tokenizer)
    groups: dict[tuple[str, str], list[tuple[Question, bool, bool]]] = defaultdict(list)
    for question, text, guess in zip(questions, written, bag.answer([question.prompt for question in questions]), strict=True):
        row = (question, text.startswith(question.right), guess in question.right)
        groups[question.relation, question.language].append(row)
    return [_score(relation, language, rows) for (relation, language), rows in sorted(groups.items())]


def _score(relation: str, language: str, rows: list[tuple[Question, bool, bool]]) -> Score:
    distinct = len({answer for question, _, _ in rows for answer in question.right})
    chance = float(np.mean([len(question.right) / distinct for question, _, _ in rows]))
    return Score(relation, language, len(rows), sum(right for _, right, _ in rows), chance, float(np.mean([known for _, _, known in rows])))


class BagOfWords:
    """Multinomial naive Bayes, 0.01 added to each count: the answer a with the largest log P(a) + sum of log P(p | a) over the pieces p.

    It learns from the model's own prompts and answers. It cannot tell "Paris is the capital of" from another order of the same pieces.
    """

    def __init__(self, learnt: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        prompts, given = zip(*learnt, strict=True)
        self.answers = sorted(set(given))
        row = {answer: i for i, answer in enumerate(self.answers)}
        counts = np.full((len(self.answers), tokenizer.get_vocab_size()), 0.01, dtype=np.float32)
        seen = np.zeros(len(self.answers), dtype=np.float32)
        for answer, encoding in zip(given, tokenizer.encode_batch(list(prompts)), strict=True):
            np.add.at(counts[row[answer]], encoding.ids, 1)
            seen[row[answer]] += 1
        self.prior = np.log(seen / seen.sum())
        self.likelihood = np.log(counts / counts.sum(1, keepdims=True))

    def answer(self, prompts: list[str]) -> list[str]:
        """Return the most probable answer of each prompt, with lead and stop."""
        encoded = self.tokenizer.encode_batch(prompts)
        return [self.answers[int(np.argmax(self.prior + self.likelihood[:, encoding.ids].sum(1)))] for encoding in encoded]


def greedy(
    logits: Callable[[Tensor, Tensor], Tensor], tokenizer: Tokenizer, most: int = 16, batch: int = 512, last: str = END_OF_TEXT
) -> Complete:
    """Return a greedy `Complete` of at most `most` new tokens, or up to the token `last`.

    logits(prompts [B S], written [B T]): returns the next token's logits. A batch has prompts of one length, without padding.
    """
    end = tokenizer.token_to_id(last)

    def complete(prompts: list[str]) -> list[str]:
        encoded: list[list[int]] = [encoding.ids for encoding in tokenizer.encode_batch(prompts)]
        return [tokenizer.decode(row) for row in continued(logits, encoded, end, most, batch)]

    return complete


@torch.no_grad()
def continued(
    logits: Callable[[Tensor, Tensor], Tensor], prompts: Sequence[list[int]], end: int | None, most: int = 16, batch: int = 512
) -> list[list[int]]:
    """Return the likeliest ids after each prompt, `most` or those up to the id `end`, which is left out. logits: as in `greedy`."""
    written = list[list[int]]([] for _ in prompts)
    for chunk in by_length(prompts, batch):
        given = torch.tensor([prompts[i] for i in chunk])
        ids, done = given[:, :0], torch.zeros(len(chunk), dtype=torch.bool)
        while not done.all() and ids.shape[1] < most:
            new = logits(given, ids).argmax(-1)
            ids, done = torch.cat([ids, new[:, None]], 1), done | (new == end)
        for i, row in zip(chunk, ids.tolist(), strict=True):
            written[i] = row[: row.index(end)] if end in row else row
    return written


def by_length(rows: Sequence[Sequence[int]], batch: int) -> Iterator[list[int]]:
    """Yield the indices of the rows in batches of equal length."""
    groups: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[len(row)].append(i)
    for members in groups.values():
        yield from (members[at : at + batch] for at in range(0, len(members), batch))
