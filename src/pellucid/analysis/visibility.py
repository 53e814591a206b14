"""Which word sees which: the weights of the first block, word by word, and the rows that a changed word reaches.

A word is the fewest pieces whose bytes are text, so that a prefix of three words is the same for every tokenizer:

    大家共同努力    pieces  大 家 E5·85 B1 E5·90 8C 努 力    words  大 家 共 同 努 力
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.config import Config
from pellucid.tracing import watch

PATTERN, ATTN = "layers.0.attn.pattern", "layers.0.attn"


@dataclass(frozen=True, eq=False)
class Visibility:
    """What each word sees. words: of rows and columns.  weights [n n]: of a word's last piece on each word, a mean over heads."""

    words: Sequence[str]
    weights: Tensor

    @property
    def seen(self) -> Tensor:
        """Return the pairs [n n] that have any weight."""
        return self.weights > 0

    @property
    def pairs(self) -> int:
        """Return the number of pairs that have any weight."""
        return int(self.seen.sum())

    @property
    def later(self) -> int:
        """Return the number of pairs in which a word sees one after it."""
        return int(self.seen.triu(1).sum())

    @property
    def complete(self) -> bool:
        """True if every word sees every word."""
        return self.pairs == len(self.words) ** 2

    def off(self, softmaxes: int) -> float:
        """Return how far the sum of the last word's weights is from this number of softmaxes."""
        return abs(self.sums[-1] - softmaxes)

    def unlike(self, moved: Tensor, least: float) -> int:
        """Return the number of pairs [n n] that are visible and not moved by more than `least`, or moved and not visible."""
        return int((self.seen != (moved > least)).sum())

    @property
    def cells(self) -> list[list[float | None]]:
        """Return the weights, None where a pair has none."""
        return [[w if w > 0 else None for w in row] for row in self.weights.tolist()]

    @property
    def sums(self) -> list[float]:
        """Return the sum of each word's weights: 1 for each softmax that its row goes through."""
        sums: list[float] = self.weights.sum(-1).tolist()
        return sums


def windowed(cfg: Config) -> bool:
    """True for a model whose attention may have a sliding window."""
    return all(any(f.name == "window" for f in fields(layer.attn)) for layer in cfg.layers)


def words_of(model: Model, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """Group pieces into words: the fewest whose bytes are text. Returns the words, and for each the number of pieces up to its end."""
    words, ends, waiting = list[str](), list[int](), b""
    for n, piece in enumerate(model.tokenizer.pieces(ids), 1):
        waiting += piece.raw
        text = waiting.decode(errors="replace")
        if "\ufffd" not in text or n == len(ids):
            words.append(text)
            ends.append(n)
            waiting = b""
    return words, ends


def by_word(weights: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Reduce a pattern [1 H T S] to words by their ends: the mean over heads, the last row of each word, the sum of its columns."""
    mean = weights[0].double().mean(0)[[end - 1 for end in rows]]
    return torch.stack([part.sum(-1) for part in mean.tensor_split(list(columns[:-1]), -1)], -1)


def text_ids(model: Model, text: str) -> list[int]:
    """Return the ids of a text without special tokens."""
    return model.tokenizer.encode(text, special=False)


def prefix_pieces(model: Model, text: str, prefix: int) -> int:
    """Return the number of pieces of the first `prefix` words of a text, of all where it has fewer."""
    return [0, *words_of(model, text_ids(model, text))[1]][: prefix + 1][-1]


def visibility(model: Model, text: str, prefix: int | None = None) -> Visibility:
    """Run a decoder or an encoder on a text. prefix: the number of first words that see each other; None: the model's own mask."""
    ids = text_ids(model, text)
    words, ends = words_of(model, ids)
    with watch(model, only=PATTERN) as seen:
        model(torch.tensor([ids], device=model.device), prefix=None if prefix is None else prefix_pieces(model, text, prefix))
    return Visibility(words, by_word(seen[PATTERN].value, ends, ends))


def across(model: Model, text: str, split: int) -> Visibility:
    """Run an encoder-decoder that reads the first `split` words of a text, one at least, and writes the rest.

    The matrix holds both stacks: a source's rows and then a target's, which see the target by one softmax and the source by another.
    """
    ids = text_ids(model, text)
    at = prefix_pieces(model, text, max(1, split))
    source, target = ids[:at], [model.config.starts or 0, *ids[at:]]
    with watch(model, only=f"*.{PATTERN.replace('attn', '*')}") as seen:
        model(torch.tensor([source], device=model.device), torch.tensor([target], device=model.device))
    (words, ends), (others, stops) = words_of(model, source), words_of(model, target)
    encoder, decoder, cross = (seen[path].value for path in (f"encoder.{PATTERN}", f"decoder.{PATTERN}", "decoder.layers.0.cross.pattern"))
    upper = torch.cat([by_word(encoder, ends, ends), encoder.new_zeros(len(ends), len(stops)).double()], 1)
    lower = torch.cat([by_word(cross, stops, ends), by_word(decoder, stops, stops)], 1)
    return Visibility([*words, *others], torch.cat([upper, lower]))


def reached(model: Model, text: str, prefix: int | None = None) -> Tensor:
    """Change each word's last piece in turn; return how far it moves each word's row [n n] of the first attention, row by changed word."""
    ids = text_ids(model, text)
    _, ends = words_of(model, ids)
    texts = torch.tensor([ids] * (len(ends) + 1), device=model.device)
    last = torch.tensor(ends, device=model.device) - 1
    changed = torch.arange(len(ends), device=model.device)
    texts[changed + 1, last] = (texts[changed + 1, last] + 1) % model.config.vocab
    with watch(model, only=ATTN) as seen:
        model(texts, prefix=None if prefix is None else prefix_pieces(model, text, prefix))
    out: Tensor = seen[ATTN].value.double()[:, last]
    return (out[1:] - out[:1]).abs().amax(-1).T


def pairs_of(words: int, prefix: int) -> int:
    """Return how many pairs a prefix mask shows: those of a causal one, and in the prefix the later words too."""
    shared = min(prefix, words)
    return words * (words + 1) // 2 + shared * (shared - 1) // 2


def own_pairs(model: Model, text: str) -> int:
    """Return how many pairs of words the first block of a causal model shows: all before, or those in its window."""
    window = getattr(model.config.layers[0].attn, "window", None)
    words = words_of(model, text_ids(model, text))[0]
    return pairs_of(len(words), 0) if window is None else window_pairs(model, text, window)


def window_pairs(model: Model, text: str, window: int) -> int:
    """Return how many pairs of words a sliding window of `window` tokens shows. A word is seen if one of its tokens is."""
    _, ends = words_of(model, text_ids(model, text))
    return sum(row - window < end <= row for row in ends for end in ends)
