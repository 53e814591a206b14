"""Rows of pairs: the documents 2·i and 2·i + 1 of the shards are the better and the other answer of pair i, and one row of a batch.

Each answer stands with its prompt from position 0, and is blind to the other.
"""

import numpy as np

from pellucid.errors import TrainError
from pellucid.training.objectives import Document
from pellucid.training.pairs import Pairs
from pellucid.training.shards import Shards
from pellucid.training.text_rows import Ids, Ints, TrainingRows, cut, document_at, least, place_of, require_learnt


class PairRows(TrainingRows):
    """Pairs as rows of two documents. references: the log-probability of each document's answer by the first weights, once it is known."""

    references: list[float] | None = None

    def document(self, number: int) -> Document:
        plain = super().document(number)
        return plain if self.references is None else plain._replace(reference=self.references[number])

    @property
    def rows(self) -> list[list[int]]:
        """The two documents of each pair."""
        return [[i, i + 1] for i in range(0, len(self), 2)]

    def micro_batches(self, numbers: list[int], micro: int | None) -> list[list[int]]:
        """Return the documents of a step in groups of `micro` pairs; all in one where None."""
        size = 2 * micro if micro else len(numbers)
        return [numbers[i : i + size] for i in range(0, len(numbers), size)]

    def figures(self) -> dict[str, int | float]:
        """Return the counts that the log begins with: pairs, tokens, and the share of the tokens that lie in answers."""
        used = int((self.ends - self.begins - 1).sum())
        return {"pairs": len(self) // 2, "tokens": used, "learnt": int(self.targets().sum()) / max(used, 1)}


def split_pairs(shards: Shards, data: Pairs, seed: int) -> tuple[PairRows, PairRows]:
    """Return what is trained on and what is held out: the pairs whose prompts have the least SHA-256, so that a prompt lies on one side."""
    begins, ends = complete_pairs(shards, data)
    require_learnt(shards, data, begins, ends)
    tokens = shards.tokens.numpy()
    for i in range(0, len(begins), 2):
        one, other = (tokens[begins[n] : ends[n]] for n in (i, i + 1))
        if np.array_equal(one, other):
            name, place = place_of(shards, document_at(shards, begins[i]))
            raise TrainError("data.same", path=data.root / name, line=place + 1)
    prompts = (prompt_of(shards, begins[i], ends[i]) for i in range(0, len(begins), 2))
    out = np.repeat(least(prompts, len(begins) // 2, data.held_out), 2)
    return PairRows(shards, data, begins[~out], ends[~out], seed), PairRows(shards, data, begins[out], ends[out], seed)


def complete_pairs(shards: Shards, data: Pairs) -> tuple[Ints, Ints]:
    """Return begin and end of each document as they are cut, without pairs of which one is dropped."""
    begins, ends = cut(shards, data)
    starts = shards.starts.numpy()[:-1]
    number = np.searchsorted(starts, begins, side="right") - 1
    kept = np.bincount(number // 2, minlength=len(starts) // 2 or 1)[number // 2] == 2
    return begins[kept], ends[kept]


def prompt_of(shards: Shards, begin: int, end: int) -> Ids:
    """Return the tokens that stand before a document's answer."""
    assert shards.learnt is not None
    return shards.tokens[begin : begin + int(shards.learnt[begin:end].numpy().argmax())].numpy()
