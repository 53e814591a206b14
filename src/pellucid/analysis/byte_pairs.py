"""Byte-pair encoding step by step, from a tokenizer's own merges: bytes become pieces, two neighbours at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pellucid.errors import UseError
from pellucid.tokenizer.pieces import LETTERS
from pellucid.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class MergeStep:
    """One step. rank: of the pair in the file's list, 0 first.  pair: its two pieces.  pieces: all of the word after it."""

    rank: int
    pair: tuple[str, str]
    pieces: Sequence[str]


@dataclass(frozen=True)
class VocabularyParts:
    """What a vocabulary of byte pairs is made of: single bytes, results of merges, added tokens; `rows` of the model's table."""

    bytes: int
    merges: int
    added: int
    rows: int

    @property
    def total(self) -> int:
        """Return the sum of the parts."""
        return self.bytes + self.merges + self.added


def merges_of(tokenizer: Tokenizer) -> dict[tuple[str, str], int]:
    """Return the ranks of a byte-level tokenizer's merges. A UseError for another kind of tokenizer."""
    ranks = tokenizer.merges()
    if not ranks or any(tokenizer.id_of(letter) is None for letter in LETTERS):
        raise UseError("tokenizer.byte_pairs", file=tokenizer.file)
    return ranks


def letters(tokenizer: Tokenizer, word: str) -> str:
    """Return a word in the vocabulary's letters, one for each byte."""
    return "".join(tokenizer.words(word))


def merge_steps(word: str, ranks: dict[tuple[str, str], int], ranked: bool = True) -> list[MergeStep]:
    """Return the steps that join a word's letters, the pair of the lowest rank first. ranked: False joins from left to right instead."""
    pieces, steps = list(word), list[MergeStep]()
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks]:
        rank, i = min(pairs) if ranked else pairs[0]
        pair = pieces[i], pieces[i + 1]
        pieces[i : i + 2] = ["".join(pair)]
        steps.append(MergeStep(rank, pair, tuple(pieces)))
    return steps


def merged_ids(tokenizer: Tokenizer, text: str, ranked: bool = True) -> list[int | None]:
    """Return the ids of a text by its merges, None for a piece without one. ranked: as in `merge_steps`."""
    ranks, ids = merges_of(tokenizer), list[int | None]()
    for word in tokenizer.words(text):
        steps = merge_steps(word, ranks, ranked)
        ids += [tokenizer.id_of(piece) for piece in (steps[-1].pieces if steps else word)]
    return ids


def agreeing(tokenizer: Tokenizer, texts: Iterable[str], ranked: bool = True) -> int:
    """Return how many texts have the same ids by their merges and from `encode`."""
    return sum(merged_ids(tokenizer, text, ranked) == tokenizer.encode(text, special=False) for text in texts)


def vocabulary_parts(tokenizer: Tokenizer, rows: int) -> VocabularyParts:
    """Count the parts of a vocabulary beside the `rows` of a model's table."""
    return VocabularyParts(len(LETTERS), len(merges_of(tokenizer)), tokenizer.added, rows)


def read_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Read ids between spaces or commas. A UseError for what is no id of the vocabulary."""
    ids = list[int]()
    for word in text.replace(",", " ").split():
        if not word.isdecimal() or int(word) >= tokenizer.rows:
            raise UseError("exhibit.value", name="ids", found=word, allowed=f"0..{tokenizer.rows - 1}")
        ids.append(int(word))
    return ids


def comma_separated(ids: Iterable[int]) -> str:
    """Write ids with commas between them."""
    return ", ".join(map(str, ids))


def grains(texts: Iterable[str], tokenizers: Sequence[Tokenizer]) -> list[tuple[str, int, int, *tuple[int, ...]]]:
    """Return a row for each text: it, its characters, its bytes, and its pieces by each tokenizer."""
    return [(t, len(t), len(t.encode()), *(len(own.encode(t, special=False)) for own in tokenizers)) for t in texts]
