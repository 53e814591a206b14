"""Four tasks put to one model as texts: what is fed, which row is read, and what is made of it (Radford et al. 2018, figure 1).

    task             fed                                    read
    classification   a text                                 the last row, by a linear map that is fitted
    entailment       a premise, then a statement            the row before its last word: that word's share
    similarity       both texts, in both orders             the rows before each word of the second: their mean log shares, added
    choice           a text, a question, an answer, each    the rows before the answer: softmax over their log shares

No weight of the model changes. Every task can be read at the first row of its texts instead: the wrong one, which has seen one token.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.invented_questions import words_of
from pellucid.analysis.lens import leaving
from pellucid.api.model import Model
from pellucid.ops.sampling.stages import logprobs
from pellucid.tracing import watch
from pellucid.training.corpus import LEAD
from pellucid.training.invented import Fact, paired

FITTED, JUDGED, FACTS, HALF = 120, 40, 2, 0.5
RIDGE = 1e-3  # keeps the fit of a linear map from more channels than texts
SEED = 11


@dataclass(frozen=True)
class TaskText:
    """A text that is fed. given: its first part.  read: the rest, whose words are judged; "" where the last row is read."""

    given: str
    read: str = ""

    @property
    def text(self) -> str:
        """Return all of it."""
        return self.given + self.read

    @property
    def marked(self) -> str:
        """Return all of it, with a line where what is read begins."""
        return f"{self.given} |{self.read}" if self.read else self.given


@dataclass(frozen=True)
class JudgedTask:
    """A task as it went. right, of: its cases.  chance: right by guessing.

    texts: what one case feeds.  numbers: what was read of these.
    """

    right: int
    of: int
    chance: float
    texts: Sequence[TaskText]
    numbers: Sequence[float]


def classification(model: Model, language: str, last: bool = True) -> JudgedTask:
    """Tell what thing a text is about, by a linear map fitted on other texts. last: False reads the first row."""
    words, draw = words_of(language), random.Random(SEED)
    made = [(draw.randrange(len(words.things)), i >= FITTED) for i in range(FITTED + JUDGED)]
    texts = [words.text(words.things[thing], paired(words, FACTS, held_out, draw)) for thing, held_out in made]
    rows = last_rows(model, texts, -1 if last else 0)
    classes = torch.tensor([thing for thing, _ in made], device=rows.device)
    scores = fitted(rows[:FITTED], classes[:FITTED], len(words.things), rows[FITTED:])
    right = int((scores.argmax(-1) == classes[FITTED:]).sum())
    best = float(scores[0].max())
    return JudgedTask(right, JUDGED, JUDGED / len(words.things), [TaskText(texts[FITTED])], [best])


def fitted(rows: Tensor, classes: Tensor, count: int, others: Tensor) -> Tensor:
    """Fit a linear map from rows [N D] to classes [N] by least squares, and return its scores of other rows [M count]."""
    x, y = with_one(rows), torch.nn.functional.one_hot(classes, count).double()
    weights = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1], dtype=x.dtype, device=x.device), x.T @ y)
    scores: Tensor = with_one(others) @ weights
    return scores


def with_one(rows: Tensor) -> Tensor:
    """Return rows [N D] with a 1 beside each [N D+1], in float64."""
    return torch.cat([rows.double(), torch.ones(len(rows), 1, dtype=torch.float64, device=rows.device)], 1)


def entailment(model: Model, language: str, last: bool = True) -> JudgedTask:
    """Tell whether a premise holds a statement: true if its last word has more than half of the share."""
    words, draw, cases = words_of(language), random.Random(SEED), list[tuple[TaskText, bool]]()
    for n in range(JUDGED):
        thing, facts, at = draw.choice(words.things), paired(words, FACTS, True, draw), draw.randrange(FACTS)
        true = n % 2 == 0
        value = facts[at if true else (at + 1) % FACTS].value
        premise = words.text(thing, facts) + LEAD[language] + words.prompt(thing, facts[at].name)
        cases.append((TaskText(premise, LEAD[language] + value), true))
    shares = [sum(own) for own in read(model, [text for text, _ in cases], last)]
    right = sum((torch.tensor(share).exp().item() > HALF) == true for share, (_, true) in zip(shares, cases, strict=True))
    return JudgedTask(right, len(cases), len(cases) / 2, [cases[0][0]], [torch.tensor(shares[0]).exp().item()])


def similarity(model: Model, language: str, last: bool = True) -> JudgedTask:
    """Tell which of two texts says the same as a third: the one with the larger sum over both orders."""
    words, draw = words_of(language), random.Random(SEED)
    pairs: list[tuple[str, str]] = []
    for _ in range(JUDGED):
        thing, facts = draw.choice(words.things), paired(words, FACTS, True, draw)
        swapped = [Fact(a.name, b.value) for a, b in zip(facts, [*facts[1:], facts[0]], strict=True)]
        one, same, other = (words.text(thing, own) for own in (facts, facts[::-1], swapped[::-1]))
        pairs += [(one, same), (one, other)]
    texts = [TaskText(a, LEAD[language] + b) for pair in pairs for a, b in (pair, pair[::-1])]
    means = [sum(own) / len(own) for own in read(model, texts, last)]
    sums = [a + b for a, b in zip(means[::2], means[1::2], strict=True)]
    right = sum(same > other for same, other in zip(sums[::2], sums[1::2], strict=True))
    return JudgedTask(right, JUDGED, JUDGED / 2, texts[:2], means[:2])


def choice(model: Model, language: str, last: bool = True) -> JudgedTask:
    """Choose one of several answers: the one whose words have the largest share together."""
    words, draw, texts, right = words_of(language), random.Random(SEED), list[TaskText](), list[int]()
    for _ in range(JUDGED):
        thing, facts, at = draw.choice(words.things), paired(words, FACTS, True, draw), draw.randrange(FACTS)
        question = words.text(thing, facts) + LEAD[language] + words.prompt(thing, facts[at].name)
        texts += [TaskText(question, LEAD[language] + fact.value) for fact in facts]
        right.append(at)
    sums = torch.tensor([sum(own) for own in read(model, texts, last)]).view(JUDGED, FACTS)
    count = int((sums.argmax(-1) == torch.tensor(right)).sum())
    return JudgedTask(count, JUDGED, JUDGED / FACTS, texts[:1], sums[0].softmax(-1)[:1].tolist())


def last_rows(model: Model, texts: Sequence[str], row: int) -> Tensor:
    """Return one row of each text as it leaves the last block [N D]."""
    path = leaving(model.module)[-1]

    def rows(ids: Tensor) -> Tensor:
        with watch(model, only=path) as seen:
            model(ids, rows=-1)
        return seen[path].value[:, row]  # type: ignore[no-any-return]

    return torch.stack(by_length([model.ids(text) for text in texts], rows, model))


def read(model: Model, texts: Sequence[TaskText], last: bool = True) -> list[list[float]]:
    """Return the log share of each token of what is read. last: False takes all of them from the first row."""
    ids, starts = [model.ids(text.text) for text in texts], [len(model.ids(text.given)) for text in texts]
    every = by_length(ids, lambda batch: logprobs(model(batch)), model)
    return [
        [float(own[i - 1 if last else 0, row[i]]) for i in range(start, len(row))]
        for own, row, start in zip(every, ids, starts, strict=True)
    ]


def by_length(ids: Sequence[Sequence[int]], run: Callable[[Tensor], Tensor], model: Model) -> list[Tensor]:
    """Run texts of one length as a batch, and return what each gives."""
    out, groups = dict[int, Tensor](), defaultdict[int, list[int]](list)
    for n, row in enumerate(ids):
        groups[len(row)].append(n)
    for group in groups.values():
        out |= dict(zip(group, run(torch.tensor([list(ids[n]) for n in group], device=model.device)), strict=True))
    return [out[n] for n in range(len(ids))]


def parts(model: Model, text: TaskText) -> tuple[list[int], list[int]]:
    """Return the ids of a text's first part, and of what is read."""
    given = model.ids(text.given)
    return given, model.ids(text.text)[len(given) :]


def ids_text(model: Model, text: TaskText) -> str:
    """Write the ids of a text, with a line where what is read begins."""
    return " | ".join(" ".join(map(str, part)) for part in parts(model, text) if part)


def linear_map(model: Model, language: str) -> str:
    """Write the shape of the fitted map: channels and a 1, classes."""
    return f"{model.config.width + 1} × {len(words_of(language).things)}"


TASKS: dict[str, Callable[[Model, str, bool], JudgedTask]] = {
    "classification": classification,
    "entailment": entailment,
    "similarity": similarity,
    "choice": choice,
}
