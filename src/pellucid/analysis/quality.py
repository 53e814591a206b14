"""How many countries' capitals a model names."""

from dataclasses import dataclass

import torch

from pellucid.api.model import Model
from pellucid.training.corpus import corpora, read

FORM = "The capital of {country} is"


@dataclass(frozen=True)
class Quality:
    """The number of right answers, of the questions."""

    right: int
    of: int


def quality(model: Model) -> Quality:
    """Ask for the capital of every country in one batch; an answer is right if its first token is."""
    tokenizer, book = model.tokenizer, read(corpora()["pellucid/capitals"])
    rows = [tokenizer.encode(FORM.format(country=one.named["name"]["en"])) for one in book.countries.values()]
    right = [tokenizer.encode(f" {one.named['capital']['en']}")[0] for one in book.countries.values()]
    longest = max(map(len, rows))
    padded = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    padding = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    answers = model(padded, padding=padding)[:, -1].argmax(-1)
    return Quality(int((answers == torch.tensor(right)).sum()), len(rows))
