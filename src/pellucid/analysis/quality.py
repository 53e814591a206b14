"""Quality as one number: how many countries a model answers right, asked in a batch for each length of a prompt.

q = quality(load("pellucid/capitals"))
q.right, q.of                                    # 194, 194
q.loss                                           # 0.0069 nats: −log of the chance of a right answer, on average
q.countries[61]                                  # ("France", "The capital of France is", " Paris", " Paris", True, 0.0011)

A watch around the call changes what is measured, as it changes any forward.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.arguments import checked
from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder
from pellucid.training.corpus import LANGUAGES, LEAD, RELATIONS, STOP, Book, answers, corpora, fill, read, slot, subject


class CountryAnswer(NamedTuple):
    """The answer about one country. expected: the first token of its right answer, of the first if there are several.

    loss: −log of the chance that the first token of a right answer has, in nats.
    """

    country: str
    prompt: str
    expected: str
    answered: str
    right: bool
    loss: float


@dataclass(frozen=True, eq=False)
class Quality:
    """The answers about all countries: `right` of `of` begin with the first token of a right answer."""

    right: int
    of: int
    countries: Sequence[CountryAnswer] = ()

    @property
    def known(self) -> bool:
        """True if at least half of the answers are right: less is luck, of which nothing can be taken away."""
        return 2 * self.right >= self.of

    @property
    def loss(self) -> float:
        """Return −log of the chance of a right answer, in nats, on average: it moves where the count of right answers does not."""
        return sum(row.loss for row in self.countries) / len(self.countries)

    def moved(self, other: "Quality") -> float:
        """Return the largest change of a country's loss between two measurements of one question."""
        return max(abs(a.loss - b.loss) for a, b in zip(self.countries, other.countries, strict=True))

    def __repr__(self) -> str:
        return f"Quality({self.right} of {self.of})"


@cache
def capitals() -> Book:
    """Return the facts that ship, read once."""
    return read(corpora()["pellucid/capitals"])


def subjects(corpus: Book | None = None, relation: str = "capital", language: str = "en") -> dict[str, str]:
    """Return what a prompt names for each country, by the country's key. corpus: by default the facts that ship."""
    return {key: subject(country, relation, language) for key, country in (corpus or capitals()).countries.items()}


@checked
def quality(model: Model, relation: str = "capital", language: str = "en", form: str | None = None) -> Quality:
    """Ask a model about every country of the facts that ship, and compare the likeliest next token with those of the right answers.

    form: a prompt with a slot, by default one that the specimens never saw in training: "The capital of {country} is". A masked model
    fills as many blanks as the answer has tokens, and the first counts. A UseError for a relation, language or form that does not exist,
    and for a model that neither continues a text nor fills blanks.
    """
    for field, value, allowed in (("relation", relation, RELATIONS), ("language", language, LANGUAGES)):
        if value not in allowed:
            raise UseError("quality.value", field=field, found=repr(value), allowed=", ".join(allowed))
    book = capitals()
    form = book.held_out[relation, language][0] if form is None else form
    if form.count(slot(relation)) != 1 or form.count("{") + form.count("}") != 2:
        raise UseError("quality.value", field="form", found=repr(form), allowed=slot(relation))
    mask = mask_of(model)
    keys, prompts, expected = list[str](), list[str](), list[list[int]]()
    for key, country in book.countries.items():
        tokens = [model.tokenizer.encode(LEAD[language] + name, special=False) for name in answers(book, country, relation, language)]
        if tokens:
            blanks = "" if mask is None else (LEAD[language] + mask) * len(tokens[0]) + STOP[language]
            keys.append(key)
            prompts.append(fill(form, subject(country, relation, language)) + blanks)
            expected.append([ids[0] for ids in tokens])
    rows = dict[int, CountryAnswer]()
    piece = model.tokenizer.decode
    for n, scores in scored(model, [model.ids(prompt) for prompt in prompts]):
        token, wanted = int(scores.argmax()), expected[n]
        right = scores[torch.tensor(sorted(set(wanted)), device=scores.device)].double()
        loss = float(scores.double().logsumexp(0) - right.logsumexp(0))
        rows[n] = CountryAnswer(keys[n], prompts[n], piece([wanted[0]]), piece([token]), token in wanted, loss)
    countries = [rows[n] for n in range(len(keys))]
    return Quality(sum(row.right for row in countries), len(countries), countries)


def mask_of(model: Model) -> str | None:
    """Return the mask of a masked model as it is written, None for a decoder. A UseError for other models."""
    if type(model.module) is Decoder and model.config.head:
        return None
    mask = model.tokenizer.special.get("mask") if isinstance(model.module, Encoder) and model.config.head else None
    if mask is None:
        raise UseError("quality.model", model=model.name)
    return model.tokenizer.piece(mask)


def likeliest(model: Model, texts: Sequence[Sequence[int]]) -> list[int]:
    """Return the likeliest token after each text, or in its first blank."""
    out = {n: int(scores.argmax()) for n, scores in scored(model, texts)}
    return [out[n] for n in range(len(texts))]


def scored(model: Model, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of each text with the logits after it, or of its first blank. Texts of one length are a batch: nothing is padded."""
    by_length = defaultdict[int, list[int]](list)
    for n, text in enumerate(texts):
        by_length[len(text)].append(n)
    for length, group in by_length.items():
        ids = torch.tensor([list(texts[n]) for n in group], device=model.device)
        model.check(ids)
        rows = [min(model.blanks(texts[n]), default=length - 1) for n in group]
        step = Step.plain(ids, mask=prefix(length) if model.config.prefix else None)
        columns = sorted(set(rows))
        step.wanted = torch.tensor(columns, device=ids.device)
        with torch.no_grad():
            logits: Tensor = model.module(ids, step)
        yield from ((n, own[columns.index(row)]) for n, row, own in zip(group, rows, logits, strict=True))
