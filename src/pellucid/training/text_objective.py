"""The objective of texts: every token of a document from those before it, with documents that share a row kept apart."""

from collections.abc import Sequence
from functools import cached_property

import torch
from tokenizers import Tokenizer
from torch import nn

from pellucid.batch.step import Step
from pellucid.training.chats import Chats
from pellucid.training.objectives import Batch, Causal, Data, Document
from pellucid.training.pair_rows import PairRows, split_pairs
from pellucid.training.pairs import Pairs
from pellucid.training.quiz import continued
from pellucid.training.shards import Shards
from pellucid.training.text_rows import TrainingRows, split_rows
from pellucid.training.texts import Texts

LONGEST = 64  # tokens that a sample in the card goes on for


class CausalText(Causal):
    """The causal objective over texts. shards: their tokens.  apart: several documents lie in a row."""

    def __init__(self, tokenizer: Tokenizer, shards: Shards, data: Texts) -> None:
        self.last = shards.end
        self.names, self.ids = (dict.fromkeys(roles, shards.end) for roles in (("bos", "eos", "unk"), ("bos", "eos")))
        super().__init__(tokenizer)
        self.shards, self.data, self.apart = shards, data, data.pack == "documents"
        self.longest = min(LONGEST, data.length // 2)
        self.rows_by_seed: dict[int, tuple[TrainingRows, TrainingRows]] = {}

    def rows_of(self, seed: int) -> tuple[TrainingRows, TrainingRows]:
        """Return what is trained on and what is held out. All tokens are hashed for it, so it is done once."""
        if seed not in self.rows_by_seed:
            self.rows_by_seed[seed] = split_rows(self.shards, self.data, seed)
        return self.rows_by_seed[seed]

    def documents(self, data: Data, seed: int, held_out: bool = False) -> list[Document]:
        trained, out = self.rows_of(seed)
        return list(out if held_out else trained)

    def batch(self, documents: Sequence[Document]) -> Batch:
        return packed_batch(documents) if self.apart else super().batch(documents)


class TaughtText(CausalText):
    """The objective of chats and pairs: only what an assistant gives, or a completion, carries loss."""

    def answered(self, model: nn.Module, document: Document) -> tuple[str, str]:
        """Return a document up to its first answer, and what the model answers."""
        assert document.learnt is not None
        prompt = document.target[: max(1, document.learnt.index(True))]
        (ids,) = continued(self.next_logits(model), [prompt], self.end, self.longest)
        return self.tokenizer.decode(prompt, skip_special_tokens=False), self.tokenizer.decode(ids, skip_special_tokens=False)


class PairedText(TaughtText):
    """The objective of pairs of answers, which lie beside each other in a batch."""

    def rows_of(self, seed: int) -> tuple[TrainingRows, TrainingRows]:
        return self.pairs_of(seed)

    def pairs_of(self, seed: int) -> tuple[PairRows, PairRows]:
        """Return the pairs that are trained on and those that are held out."""
        if seed not in self.pairs_by_seed:
            assert isinstance(self.data, Pairs)
            self.pairs_by_seed[seed] = split_pairs(self.shards, self.data, seed)
        return self.pairs_by_seed[seed]

    @cached_property
    def pairs_by_seed(self) -> dict[int, tuple[PairRows, PairRows]]:
        """The pairs by the seed of their order."""
        return {}

    def groups(self, documents: Sequence[Document], batch: int) -> list[list[Document]]:
        """Return documents in batches of this number of pairs."""
        return [list(documents[i : i + 2 * batch]) for i in range(0, len(documents), 2 * batch)]


def of_shards(shards: Shards, data: Texts) -> CausalText:
    """Return the objective of texts, of chats, or of pairs."""
    kind = PairedText if isinstance(data, Pairs) else TaughtText if isinstance(data, Chats) else CausalText
    return kind(shards.tokenizer, shards, data)


def packed_batch(documents: Sequence[Document]) -> Batch:
    """Return the batch of documents end to end in one row: each has its own positions, and attends to itself alone."""
    inputs = torch.tensor([i for d in documents for i in d.target[:-1]])
    targets = torch.tensor([i for d in documents for i in d.losses()[1:]])
    prompts = {i: d.target[:-1] for i, d in enumerate(documents)}
    step = Step.packed([len(ids) for ids in prompts.values()], prompts=prompts)
    references = [d.reference for d in documents if d.reference is not None]
    return Batch((inputs[None], step), targets[None], torch.tensor(references, dtype=torch.float64) if references else None)
