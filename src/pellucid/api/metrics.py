"""The numbers that tell a sweep what a run answers: of a word, of two, of the text itself, of the distance from a run without changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.arguments import checked
from pellucid.engine.forks import ForkedText
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder
from pellucid.ops.sampling.stages import logprobs


@dataclass(frozen=True)
class Continuation:
    """Words of any number of tokens that may follow a prompt."""

    text: str


Metric = str | tuple[str, str] | Continuation | Callable[[Tensor], Tensor]


def one_each(numbers: object, name: str, n: int) -> Tensor:
    """Return what the metric `name` gave for n runs, if it is one number for each; else a UseError."""
    if isinstance(numbers, Tensor) and numbers.shape == (n,) and not numbers.is_complex():
        return numbers
    shown = f"a tensor [{' '.join(map(str, numbers.shape))}]" if isinstance(numbers, Tensor) else type(numbers).__name__
    raise UseError("sweep.number", name=name, found=shown, n=n)


@dataclass(frozen=True)
class Measure:
    """A number of a run, with its name. number(logits [n rows V], those of the run without changes [rows V]) -> [n].

    more: ids that follow the prompt.  scored: the rows are all of the text but its last, and not those after the prompt.
    """

    name: str
    number: Callable[[Tensor, Tensor], Tensor]
    more: tuple[int, ...] = ()
    scored: bool = False

    def text(self, model: Model, ids: Sequence[int]) -> ForkedText:
        """Return what the model reads so that this can be measured. A UseError for ids that it cannot read."""
        starts = model.config.starts
        prompt, source = (tuple(ids), None) if starts is None else ((starts,), tuple(ids))
        tokens = (*prompt, *self.more)
        for read in (tokens, source or tokens):
            model.check(torch.tensor([read]))
        if self.scored:
            return ForkedText(tokens, len(prompt), tuple(range(len(tokens) - 1)), source, True)
        rows = tuple(model.blanks(ids)[:1]) or range(len(prompt) - 1, len(tokens))
        return ForkedText(tokens, len(prompt), tuple(rows), source)


@checked
def continuation(text: str) -> Continuation:
    """Measure a sweep by the log-probability of words that follow the prompt: the sum over their tokens, however many."""
    return Continuation(text)


def measured(model: Model, metric: Metric, ids: Sequence[int]) -> Measure:
    """Return the measure of a metric on these ids. A UseError for a word that is not one token, and for a model or text without it."""
    if isinstance(metric, Continuation):
        own = tuple(model.tokenizer.encode(metric.text, special=False))
        if isinstance(model.module, Encoder) or not own:
            raise UseError("sweep.continuation", model=model.name, text=metric.text)
        return Measure(f"log p({metric.text})", lambda x, base: of_tokens(x, own).sum(-1), own[:-1])
    if metric == "loss":
        if type(model.module) is not Decoder or len(ids) < 2:
            raise UseError("sweep.loss", model=model.name)
        return Measure("loss", lambda x, base: -of_tokens(x, ids[1:]).mean(-1), scored=True)
    if metric == "kl":
        return Measure("KL", divergence)
    if callable(metric):
        name = getattr(metric, "__name__", "number")
        return Measure(name, lambda x, base: one_each(metric(x[:, 0]), name, len(x)))
    words = [metric] if isinstance(metric, str) else list(metric)
    if len(words) not in (1, 2):
        raise UseError("sweep.metric", found=repr(metric))
    a, *b = (one_token(model, word) for word in words)
    if not b:
        return Measure(f"log p({words[0]})", lambda x, base: logprobs(x[:, 0])[:, a])
    return Measure(f"logit({words[0]}) − logit({words[1]})", lambda x, base: x[:, 0, a] - x[:, 0, b[0]])


def one_token(model: Model, word: str) -> int:
    """Return the id of a word. A UseError if it is not one token."""
    ids = model.tokenizer.encode(word, special=False)
    if len(ids) != 1:
        raise UseError("sweep.word", word=word, pieces="|".join(pieces(model, ids)))
    return ids[0]


def of_tokens(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the log-probability of each id at its row of logits [n rows V]: [n rows]."""
    return logprobs(logits).gather(-1, torch.tensor(ids, device=logits.device).expand(len(logits), -1)[..., None])[..., 0]


def divergence(logits: Tensor, base: Tensor) -> Tensor:
    """Return the KL divergence [n] of the first row's distribution from the run's without changes, in nats."""
    p, q = logprobs(base[:1]), logprobs(logits[:, 0])
    return (p.exp() * (p - q)).nan_to_num(0.0).sum(-1)  # 0 · −∞ is 0


def pieces(model: Model, ids: Sequence[int]) -> list[str]:
    """Return the pieces of ids; for a model without a tokenizer the ids."""
    return list(map(str, ids)) if model._tokenizer is None else [piece.text for piece in model.tokenizer.pieces(ids)]
