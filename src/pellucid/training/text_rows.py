"""Rows of training texts: documents cut to a row's length, held out or packed, in an order whose every step is computed alone.

pack = "documents"   | a a a a b b b c c | d d d d d d e e .   |   each document from position 0, and blind to its neighbours
pack = "stream"      | a a a a b b b c c | c d d d d d d e e   |   one long text, cut anywhere
pack = "none"        | a a a a . . . . . | b b b . . . . . .   |   a document a row, padded in its batch
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np

from pellucid.errors import TrainError
from pellucid.training.objectives import Document
from pellucid.training.order import mixed_rows_of_step, permuted, rows_of_step
from pellucid.training.shards import Shards
from pellucid.training.texts import Texts

OPEN_ROWS = 64  # in which a document is tried before a new row is begun
Ints = np.ndarray[Any, np.dtype[np.int64]]
Ids = np.ndarray[Any, np.dtype[Any]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class TrainingRows(Sequence[Document]):
    """Cut documents as examples, by their number, and the rows that they are trained in. seed: of the packing and the order."""

    def __init__(self, shards: Shards, data: Texts, begins: Ints, ends: Ints, seed: int) -> None:
        self.shards, self.data, self.begins, self.ends, self.seed = shards, data, begins, ends, seed

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, number: int) -> Document: ...
    @overload
    def __getitem__(self, number: slice) -> list[Document]: ...
    def __getitem__(self, number: int | slice) -> Document | list[Document]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        return self.document(number)

    def document(self, number: int) -> Document:
        """Return one example."""
        part, learnt = slice(self.begins[number], self.ends[number]), self.shards.learnt
        return Document([], self.shards.tokens[part].tolist(), None if learnt is None else learnt[part].bool().tolist())

    @cached_property
    def rows(self) -> list[list[int]]:
        """The documents of each row. Packing is first-fit over a window of open rows, the documents in an order by the seed."""
        if self.data.pack != "documents":
            return [[number] for number in range(len(self))]
        sizes, rows = (self.ends - self.begins - 1).tolist(), list[list[int]]()
        for first, last in pairwise(self.borders):
            order = [first + permuted(i, last - first, self.seed, -1) for i in range(last - first)]
            rows += packed(sizes, self.data.length, order)
        return rows

    @cached_property
    def borders(self) -> list[int]:
        """The number of the first example of each source, and the number of all."""
        return np.searchsorted(self.begins, self.shards.starts.numpy()[source_borders(self.shards)]).tolist()  # type: ignore[no-any-return]

    @cached_property
    def counts(self) -> list[int]:
        """The number of rows of each source."""
        firsts = [row[0] for row in self.rows]
        return [sum(first <= number < last for number in firsts) for first, last in pairwise(self.borders)]

    @cached_property
    def drawn(self) -> list[int]:
        """The number of rows that an epoch has of each source, by its weight; at least one of one that has rows."""
        weights = [one.weight for one in self.data.source] or [1.0]
        return [max(1, round(weight * n)) if n else 0 for weight, n in zip(weights, self.counts, strict=True)]

    @cached_property
    def row_of(self) -> Ints:
        """The row of each document."""
        row_of = np.zeros(len(self), dtype=np.int64)
        for row, members in enumerate(self.rows):
            row_of[members] = row
        return row_of

    def steps(self, step: int, batch: int) -> Iterator[list[int]]:
        """Yield the documents of each step from `step` on, forever: those of `batch` rows."""
        while True:
            if self.data.source:
                rows = mixed_rows_of_step(step, batch, self.counts, self.drawn, self.seed)
            else:
                rows = rows_of_step(step, batch, len(self.rows), self.seed)
            yield [number for row in rows for number in self.rows[row]]
            step += 1

    def micro_batches(self, numbers: list[int], micro: int | None) -> list[list[int]]:
        """Return the documents of a step in groups of `micro` rows; all in one where None."""
        rows = list[list[int]]()
        for number in numbers:
            if number == self.rows[self.row_of[number]][0]:  # a row may come twice in a row
                rows.append([])
            rows[-1].append(number)
        groups = [rows[i : i + micro] for i in range(0, len(rows), micro)] if micro else [rows]
        return [[number for row in group for number in row] for group in groups]

    def figures(self) -> dict[str, int | float]:
        """Return the counts that the log begins with: documents after they are cut, tokens, rows, and the share of positions left idle."""
        used = int((self.ends - self.begins - 1).sum())
        counts = {"examples": len(self), "tokens": used, "rows": len(self.rows), "idle": 1 - used / (len(self.rows) * self.data.length)}
        return counts if self.shards.learnt is None else counts | {"learnt": int(self.targets().sum()) / used}

    @property
    def epoch_rows(self) -> int:
        """The number of rows of an epoch."""
        return sum(self.drawn) if self.data.source else len(self.rows)

    def epoch_targets(self) -> float:
        """Return how many tokens of an epoch carry loss, of sources by their shares."""
        targets = self.targets()
        if not self.data.source:
            return float(targets.sum())
        sources = zip(pairwise(self.borders), self.drawn, self.counts, strict=True)
        return sum(float(targets[first:last].sum()) * drawn / count for (first, last), drawn, count in sources if count)

    def targets(self) -> Ints:
        """Return how many tokens of each example carry loss; all but the first where texts have no other mark."""
        if self.shards.learnt is None:
            return self.ends - self.begins - 1
        before: Ints = np.concatenate([[0], self.shards.learnt.numpy().cumsum(dtype=np.int64)])
        return before[self.ends] - before[self.begins + 1]

    def source(self, number: int) -> tuple[str, int]:
        """Return the file of an example's first token, by its name in the index, and its document there or, of a chat, its line, from 0."""
        return place_of(self.shards, document_at(self.shards, self.begins[number]))

    def identity(self) -> dict[str, Any]:
        """Return what the rows depend on besides the seed, by the names that an error gives."""
        index = self.shards.index
        named = {f"data.{field}": getattr(self.data, field) for field in ("length", "pack", "long", "held_out")}
        named |= {"data.source": [[list(one.files), one.weight] for one in self.data.source]} if self.data.source else {}
        sources = hashlib.sha256(repr(sorted(index["sources"].items())).encode()).hexdigest()
        shards = hashlib.sha256(repr(sorted(index["shards"].items())).encode()).hexdigest()
        return {**named, "tokenizer": index["tokenizer_hash"], "sources": sources, "documents": shards}

    def check(self, positions: int | None) -> None:
        """Raise TrainError if there is nothing to train on, or a row is longer than the model's positions."""
        if not len(self):
            raise TrainError("train.empty")
        self.data.require_positions(positions)


def split_rows(shards: Shards, data: Texts, seed: int) -> tuple[TrainingRows, TrainingRows]:
    """Return what is trained on and what is held out: the examples with the least SHA-256, so that equal ones lie on one side.

    A TrainError if all are equal, so that none is left to train on.
    """
    begins, ends = cut(shards, data)
    require_learnt(shards, data, begins, ends)
    tokens = shards.tokens.numpy()
    out = least((tokens[b:e] for b, e in zip(begins, ends, strict=True)), len(begins), data.held_out)
    if len(out) and out.all():
        raise TrainError("data.equal", count=f"{len(out):,}", share=data.held_out)
    return TrainingRows(shards, data, begins[~out], ends[~out], seed), TrainingRows(shards, data, begins[out], ends[out], seed)


def least(texts: Iterable[Ids], count: int, share: float) -> Flags:
    """Return which of `count` texts have the least SHA-256: this share of them, all but one at most, and every one that equals one of
    these. Nothing is hashed where the share is 0.
    """
    taken = min(count - 1, max(1, round(share * count))) if share else 0
    if taken <= 0:
        return np.zeros(count, dtype=bool)
    hashes = [hashlib.sha256(text.tobytes()).digest() for text in texts]
    last = sorted(hashes)[taken - 1]
    return np.array([own <= last for own in hashes])


def cut(shards: Shards, data: Texts) -> tuple[Ints, Ints]:
    """Return begin and end of each example. An example of n tokens takes n - 1 positions; where a document is split, the last token of
    a part is the first of the next, so that each is predicted once.
    """
    starts = shards.starts.numpy()
    if data.pack == "stream":
        starts = starts[source_borders(shards)]
    first, last = starts[:-1], starts[1:]
    first, last = first[last - first > 1], last[last - first > 1]  # a tokenizer may give no id for a text
    sizes = last - first - 1
    long = sizes > data.length
    if data.pack == "stream" or data.long == "split":
        parts = np.maximum(-(-sizes // data.length), 1)
    else:
        parts = np.ones_like(sizes)
    if data.pack != "stream" and long.any():
        if data.long == "refuse":
            refuse(shards, data, int(long.argmax()))
        if data.long == "drop":
            first, last, parts = first[~long], last[~long], parts[~long]
    part = np.arange(parts.sum()) - np.repeat(parts.cumsum() - parts, parts)
    begins = np.repeat(first, parts) + part * data.length
    return begins, np.minimum(begins + data.length + 1, np.repeat(last, parts))


def source_borders(shards: Shards) -> list[int]:
    """Return the number of the first document of each source, and the number of all."""
    counts = shards.index["documents"]
    groups = shards.index.get("groups") or [list(counts)]
    return [0, *accumulate(sum(counts.get(name, 0) for name in group) for group in groups)]


def refuse(shards: Shards, data: Texts, number: int) -> None:
    """Raise TrainError for a document that is longer than a row, by its file and its number there."""
    size, (name, place) = int(shards.starts[number + 1] - shards.starts[number]), place_of(shards, number)
    raise TrainError("data.long", path=data.root / name, number=place + 1, found=size, most=data.length + 1)


def document_at(shards: Shards, token: int) -> int:
    """Return the number of the document that a token lies in."""
    return int(np.searchsorted(shards.starts.numpy(), token, side="right")) - 1


def place_of(shards: Shards, number: int) -> tuple[str, int]:
    """Return the file of a document, by its name in the index, and its number there or, of a chat, its line, from 0."""
    first = number
    for name, count in shards.index["documents"].items():
        if number < count:
            return name, number if shards.lines is None else int(shards.lines[first]) - 1
        number -= count
    raise AssertionError(first)


def require_learnt(shards: Shards, data: Texts, begins: Ints, ends: Ints) -> None:
    """Raise TrainError for the first example whose tokens that carry loss were all cut away."""
    if shards.learnt is None:
        return
    before = np.concatenate([[0], shards.learnt.numpy().cumsum(dtype=np.int64)])
    bare = before[ends] == before[np.minimum(begins + 1, ends)]
    if bare.any():
        name, place = place_of(shards, document_at(shards, begins[int(bare.argmax())]))
        raise TrainError("data.cut", path=data.root / name, number=place + 1, most=f"{data.length:,}")


def packed(sizes: Sequence[int], length: int, order: Sequence[int]) -> list[list[int]]:
    """Return rows of documents: each, in its `order`, goes to the first of the open rows that has space for its positions."""
    rows, spaces = list[list[int]](), list[int]()
    first = 0  # the oldest open row
    for number in order:
        size = sizes[number]
        row = next((row for row in range(first, len(rows)) if spaces[row] >= size), None)
        if row is None:
            row = len(rows)
            rows.append([])
            spaces.append(length)
            first = max(first, len(rows) - OPEN_ROWS)
        rows[row].append(number)
        spaces[row] -= size
    return rows
