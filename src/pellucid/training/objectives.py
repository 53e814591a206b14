"""Objectives of training: each makes documents of a corpus, lays a batch of them out, and completes prompts for the quiz.

causal                                | The capital of France is Paris.   every token from those before it
prefix      The capital of France is  | Paris.                            the answer, after a bidirectional prompt (arXiv 1910.10683)
translation The capital of France is Paris. | 法国的首都是巴黎。             the target, by a decoder whose encoder read the source
masked      The capital of France is [MASK]. | Paris                      each blank, from both sides (arXiv 1810.04805)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, processors
from torch import Tensor, nn

from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder
from pellucid.training import invented
from pellucid.training.corpus import END_OF_TEXT, LEAD, STOP, Sentence, sentences, translations
from pellucid.training.invented import Invented
from pellucid.training.quiz import Complete, Question, by_length, greedy, questions
from pellucid.training.texts import Texts

IGNORED = -100  # a target that carries no loss: padding and the prompt


Data = Path | Invented | Texts
"""What a model is trained on: a folder of facts, the settings of a corpus whose facts are invented, or texts."""


class Document(NamedTuple):
    """One example as ids: the model's input, and its target. learnt: of each id of the target, whether it carries loss; None for all.

    reference: of an answer that is compared with another, its log-probability by the first weights.
    """

    given: list[int]
    target: list[int]
    learnt: list[bool] | None = None
    reference: float | None = None

    def losses(self) -> list[int]:
        """Return the target's ids, IGNORED where they carry no loss."""
        return self.target if self.learnt is None else [i if own else IGNORED for i, own in zip(self.target, self.learnt, strict=True)]


class Batch(NamedTuple):
    """A batch: the model's inputs, and the targets [B T] of its logits, IGNORED where there is none.

    of_texts: numbers of each text that the criterion needs, [texts] or [texts n]: the log-probability by the first weights, the advantage.
    """

    inputs: tuple[Any, ...]
    targets: Tensor
    of_texts: Tensor | None = None


class Objective(ABC):
    """One way to train a model and to quiz it.

    kind: the class of model.  special: tokens of the vocabulary that are no text.  names: some of them by their roles in
    tokenizer_config.json.  ids: those in config.json.  last: the end of a text.  measured: the key of the card's caption of accuracies.
    """

    kind: type[nn.Module] = Decoder
    special: tuple[str | AddedToken, ...] = (END_OF_TEXT,)
    names = {"bos": END_OF_TEXT, "eos": END_OF_TEXT, "unk": END_OF_TEXT}
    ids = {"bos": END_OF_TEXT, "eos": END_OF_TEXT}
    last = END_OF_TEXT
    measured = "card.measured"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.end = number(tokenizer, self.last)

    def learnt(self, data: Data, seed: int = 0, held_out: bool = False) -> Iterator[tuple[str, str]]:
        """Yield every trained prompt with its answer, in an order by the seed; or those of the held-out forms."""
        if isinstance(data, Invented):
            yield from ((e.prompt, e.answer) for e in invented_texts(data, seed, held_out))
            return
        for s in sentences(folder_of(data), held_out, seed):
            yield s.prompt, continuation(s)

    def questions(self, data: Data) -> list[Question]:
        """Return every held-out prompt once."""
        return questions(data if isinstance(data, Invented) else folder_of(data))

    @abstractmethod
    def documents(self, data: Data, seed: int, held_out: bool = False) -> list[Document]:
        """Return the documents to train on, or those held out of training."""

    @abstractmethod
    def rows(self, document: Document) -> int:
        """Return the number of positions that a document takes."""

    @abstractmethod
    def batch(self, documents: Sequence[Document]) -> Batch:
        """Return the batch of these documents."""

    def groups(self, documents: Sequence[Document], batch: int) -> list[list[Document]]:
        """Return documents in batches of this size, those of like length together."""
        by_length = sorted(documents, key=self.rows)
        return [by_length[i : i + batch] for i in range(0, len(by_length), batch)]

    @abstractmethod
    def complete(self, model: nn.Module) -> Complete:
        """Return the function that answers prompts with `model`."""


class Causal(Objective):
    """Every token from those before it: a sentence, and the end of text. longest: tokens of a completion."""

    longest = 16

    def documents(self, data: Data, seed: int, held_out: bool = False) -> list[Document]:
        if isinstance(data, Invented):
            return self.invented(data, seed, held_out)
        pairs = list(self.learnt(data, seed, held_out))
        prompts = self.tokenizer.encode_batch([prompt for prompt, _ in pairs])
        full = self.tokenizer.encode_batch([prompt + answer for prompt, answer in pairs])
        return [self.document([*w.ids, self.end], len(p.ids)) for p, w in zip(prompts, full, strict=True)]

    def invented(self, data: Invented, seed: int, held_out: bool) -> list[Document]:
        """Return the documents of invented facts. Only what can be known carries loss: what is stated or read before it is asked again."""
        texts = list(invented_texts(data, seed, held_out))
        stated = self.tokenizer.encode_batch([e.stated for e in texts])
        full = self.tokenizer.encode_batch([e.stated + e.again for e in texts])
        out = [Document(w.ids[: len(s.ids)], [*w.ids[len(s.ids) :], self.end]) for s, w in zip(stated, full, strict=True)]
        copies = () if held_out else invented.copies(data, self.tokenizer.get_vocab_size(), seed)
        return out + [Document(ids, again) for ids, again in copies]

    def document(self, ids: list[int], prompt: int) -> Document:
        """Return the document of a sentence whose first `prompt` ids are its prompt."""
        return Document([], ids)

    def rows(self, document: Document) -> int:
        return len(document.given) + len(document.target) - 1

    def batch(self, documents: Sequence[Document]) -> Batch:
        inputs = stacked([[*d.given, *d.target] for d in documents])[:, :-1].clamp(min=0)
        targets = stacked([[IGNORED] * len(d.given) + d.losses() for d in documents])[:, 1:]
        return Batch((inputs, self.step(inputs, torch.tensor([len(d.given) for d in documents]))), targets)

    def step(self, tokens: Tensor, given: Tensor) -> Step:
        """Return the step of tokens [B T] whose first given [B] are the prompt."""
        return Step.plain(tokens)

    def complete(self, model: nn.Module) -> Complete:
        return greedy(self.next_logits(model), self.tokenizer, self.longest, last=self.last)

    def next_logits(self, model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the function of prompts [B S] and what was written after them [B T] that gives the next token's logits [B V]."""

        def logits(prompt: Tensor, written: Tensor) -> Tensor:
            tokens = torch.cat([prompt, written], 1)
            return last_logits(model, (tokens,), self.step(tokens, torch.full(tokens.shape[:1], prompt.shape[1])))

        return logits


class Prefix(Causal):
    """The answer after a bidirectional prompt; only the answer carries loss."""

    def document(self, ids: list[int], prompt: int) -> Document:
        return Document(ids[:prompt], ids[prompt:])

    def step(self, tokens: Tensor, given: Tensor) -> Step:
        return Step.plain(tokens, mask=prefix(given))


class Translation(Objective):
    """An English sentence in, the Chinese sentence of the same fact out. The decoder starts with the end of text."""

    kind = EncoderDecoder
    names = {"eos": END_OF_TEXT, "pad": END_OF_TEXT, "unk": END_OF_TEXT}
    ids = {"decoder_start": END_OF_TEXT, "eos": END_OF_TEXT, "pad": END_OF_TEXT}
    measured = "card.translated"

    def learnt(self, data: Data, seed: int = 0, held_out: bool = False) -> Iterator[tuple[str, str]]:
        for s, target in translations(folder_of(data), held_out, seed):
            yield s.text, target

    def questions(self, data: Data) -> list[Question]:
        return [Question(s.text, (target,), s.relation, s.language) for s, target in translations(folder_of(data), held_out=True)]

    def documents(self, data: Data, seed: int, held_out: bool = False) -> list[Document]:
        pairs = list(self.learnt(data, seed, held_out))
        sources, targets = (self.tokenizer.encode_batch([pair[i] for pair in pairs]) for i in (0, 1))
        return [Document(s.ids, [*t.ids, self.end]) for s, t in zip(sources, targets, strict=True)]

    def rows(self, document: Document) -> int:
        return max(len(document.given), len(document.target))

    def batch(self, documents: Sequence[Document]) -> Batch:
        source, targets = stacked([d.given for d in documents]), stacked([d.target for d in documents])
        tokens = torch.cat([torch.full_like(targets[:, :1], self.end), targets[:, :-1]], 1).clamp(min=0)
        return Batch((source.clamp(min=0), tokens, Step.plain(tokens), Step.plain(source, source != IGNORED)), targets)

    def complete(self, model: nn.Module) -> Complete:
        def logits(prompt: Tensor, written: Tensor) -> Tensor:
            tokens = torch.cat([torch.full_like(prompt[:, :1], self.end), written], 1)
            return last_logits(model, (prompt, tokens), Step.plain(tokens))

        return greedy(logits, self.tokenizer)


MASK = "[MASK]"


class Masked(Objective):
    """The tokens of the answer, each masked, from both sides; [CLS] and [SEP] stand around a text as in BERT."""

    kind = Encoder
    special = ("[PAD]", "[CLS]", "[SEP]", AddedToken(MASK, lstrip=True, special=True))  # a blank is a word with its space
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": MASK}
    ids = {"pad": "[PAD]"}
    last = "[SEP]"
    measured = "card.filled"

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        around = [(name, number(tokenizer, name)) for name in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=around)
        self.mask = number(tokenizer, MASK)

    def blanked(self, given: list[Sentence]) -> Iterator[tuple[str, list[int], range]]:
        """Yield each sentence with one mask for each token of its answer, its own ids, and the range of the masks."""
        stops = {language: len(self.tokenizer.encode(stop, add_special_tokens=False)) for language, stop in STOP.items()}
        prompts = self.tokenizer.encode_batch([s.prompt for s in given])
        full = self.tokenizer.encode_batch([s.text for s in given])
        for s, p, w in zip(given, prompts, full, strict=True):
            at = range(len(p.ids) - 1, len(w.ids) - 1 - stops[s.language])
            yield s.prompt + (LEAD[s.language] + MASK) * len(at) + STOP[s.language], w.ids, at

    def learnt(self, data: Data, seed: int = 0, held_out: bool = False) -> Iterator[tuple[str, str]]:
        given = list(sentences(folder_of(data), held_out, seed))
        for s, (text, _, _) in zip(given, self.blanked(given), strict=True):
            yield text, continuation(s)

    def questions(self, data: Data) -> list[Question]:
        given = list(sentences(folder_of(data), held_out=True))
        right = {q.prompt: q.right for q in questions(folder_of(data))}
        blanked = zip(given, self.blanked(given), strict=True)
        return list({text: Question(text, right[s.prompt], s.relation, s.language) for s, (text, _, _) in blanked}.values())

    def documents(self, data: Data, seed: int, held_out: bool = False) -> list[Document]:
        """Return documents with the answer masked from its first token on, from its second on, and so on: masks are filled in turn."""
        return [
            Document([*ids[:first], *[self.mask] * (at.stop - first), *ids[at.stop :]], ids[first : at.stop])
            for _, ids, at in self.blanked(list(sentences(folder_of(data), held_out, seed)))
            for first in at
        ]

    def rows(self, document: Document) -> int:
        return len(document.given)

    def batch(self, documents: Sequence[Document]) -> Batch:
        given = stacked([d.given for d in documents])
        targets = torch.full_like(given, IGNORED)
        targets[given == self.mask] = torch.tensor([i for d in documents for i in d.target])
        return Batch((given.clamp(min=0), Step.plain(given, given != IGNORED)), targets)

    def complete(self, model: nn.Module) -> Complete:
        """Return a function that fills masks from the left, each with its likeliest token, and returns the text from the first mask on."""

        def fill(prompts: list[str]) -> list[str]:
            encoded: list[list[int]] = [e.ids for e in self.tokenizer.encode_batch(prompts)]
            written = [""] * len(prompts)
            with torch.no_grad():
                for chunk in by_length(encoded, 512):
                    ids = torch.tensor([encoded[i] for i in chunk])
                    while (blank := ids == self.mask).any():
                        best = model(ids).index_fill(-1, torch.tensor([self.mask]), float("-inf")).argmax(-1)
                        ids = torch.where(blank & (blank.cumsum(1) == 1), best, ids)
                    for i, row in zip(chunk, ids.tolist(), strict=True):
                        written[i] = self.tokenizer.decode(row[encoded[i].index(self.mask) :])
            return written

        return fill


OBJECTIVES: dict[str, type[Objective]] = {"causal": Causal, "prefix": Prefix, "translation": Translation, "masked": Masked}


def objective_of(name: str) -> type[Objective]:
    """Return the objective that a recipe names. One that distils has the documents and batches of the causal one."""
    return Causal if name == "distil" else OBJECTIVES[name]


def folder_of(data: Data) -> Path:
    """Return the folder of a corpus of facts; a recipe refuses other data for these objectives."""
    assert isinstance(data, Path)
    return data


def invented_texts(data: Invented, seed: int, held_out: bool) -> Iterator[invented.Example]:
    """Yield the texts to train on, or those of the quiz, whose pairs are held out."""
    yield from (e for _, e in invented.quizzed(data)) if held_out else invented.examples(data, seed)


def continuation(s: Sentence) -> str:
    """Return a sentence's answer and its stop."""
    return s.answer + STOP[s.language]


def stacked(rows: Sequence[list[int]]) -> Tensor:
    """Return rows of ids as [B T], padded with IGNORED."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[IGNORED] * (longest - len(row))] for row in rows], dtype=torch.long)


def last_logits(model: nn.Module, tokens: tuple[Tensor, ...], step: Step) -> Tensor:
    """Return the logits [B V] of the last row only."""
    step.wanted = torch.tensor([tokens[-1].shape[1] - 1])
    after: Tensor = model(*tokens, step)
    return after[:, -1]


def number(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token of the vocabulary."""
    id = tokenizer.token_to_id(token)
    assert id is not None, token
    return id
