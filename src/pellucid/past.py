"""What earlier steps have stored, and where it lies.

A part stores through its Step and gets back a Past: a list of pieces, one a request. A plain batch, packed documents, pages and the
memory of an encoder are all pieces, and an op reads each where it lies.

    pages of 4 rows     pool  | 0 1 2 3 | 4 5 6 7 | 8 9 . . |        request "a" of 6 tokens holds pages [2, 0]:
    request "a"         table [2, 0]                                  its rows lie at 8 9 10 11 0 1
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pellucid.errors import UseError

Stored = tuple[Tensor, ...]


@dataclass(frozen=True)
class Span:
    """The rows of one request in a flattened step; `before` counts its tokens that earlier steps have stored."""

    request: object
    start: int
    stop: int
    before: int = 0

    @property
    def end(self) -> int:
        """How many tokens of the request are stored when this step is."""
        return self.before + self.stop - self.start


@dataclass(frozen=True)
class Paged:
    """Where a piece lies in its part's pools: rows of `size` under the numbers of `table`. A native kernel reads it by pointers alone."""

    pools: Stored
    table: Tensor
    size: int
    end: int

    def blocks(self) -> Iterator[tuple[Stored, Tensor]]:
        """Page by page: views of the stored tensors [rows ...], and their positions [1 rows]. Nothing is copied."""
        for i in range(-(-self.end // self.size)):
            a, n = int(self.table[i]) * self.size, min(self.size, self.end - i * self.size)
            yield tuple(p[a : a + n] for p in self.pools), torch.arange(i * self.size, i * self.size + n)[None]


class Piece:
    """One request's queries and the keys they may meet.

    rows cuts T; q_at [B T] and k_at [B S] are positions, -1 for padding; read() gives the stored tensors, [B S ...] each. whole: the keys
    are positions 0, 1, 2 ... without padding, and the queries are the last of them. paged: where they lie, if in pages. kept: the
    tensors of a memory without padding.
    """

    def __init__(
        self,
        request: object,
        rows: slice,
        q_at: Tensor,
        k_at: Callable[[], Tensor],
        read: Callable[[], Stored],
        whole: bool = False,
        paged: Paged | None = None,
        kept: Stored = (),
    ) -> None:
        self.request, self.rows, self.q_at, self.read, self.whole, self.paged = request, rows, q_at, read, whole, paged
        self._k_at, self.kept = k_at, kept

    @cached_property
    def k_at(self) -> Tensor:
        return self._k_at()


@dataclass(frozen=True)
class Abreast:
    """The pieces of a past at once, one row each, in the same pools: row r of T stands at positions[0, r], under tables[r]."""

    pools: Stored
    tables: Tensor
    size: int
    positions: Tensor


@dataclass(frozen=True)
class Apart:
    """The pieces of a past at once, one row each, that lie wherever they lie: row r of T meets the keys and values of places[r]."""

    like: Stored  # of their kind
    places: Tensor


@dataclass
class Past:
    """A handle on what a part stored. `pieces` is all that an op reads; only an op decides how to read a piece."""

    pieces: list[Piece]
    new: Stored = ()  # what this step added
    abreast: Abreast | Apart | None = None


class Pages:
    """Storage in pages of a few rows. A request holds a table of pages; every part has its own pools, addressed by the same tables.

    count: pages in all.  size: rows a page.
    """

    def __init__(self, count: int = 64, size: int = 16) -> None:
        self.count, self.size = count, size
        self.free = list(range(count))[::-1]
        self.tables: dict[object, Tensor] = {}  # of fixed length, so that a recorded plan may point to one
        self.held: dict[object, int] = {}
        self.length: dict[object, int] = {}
        self.budget: dict[object, int] = {}  # the most tokens a request may come to, where its owner knows
        self.pools: dict[nn.Module, Stored] = {}
        self.memory: dict[tuple[nn.Module, object], tuple[Stored, Tensor, bool]] = {}  # and whether padded

    def reserve(self, request: object, tokens: int) -> None:
        """Give the request pages for this many tokens in all, so that a forward allocates nothing."""
        table = self.tables.setdefault(request, torch.zeros(self.count, dtype=torch.long))
        self.length.setdefault(request, 0)
        held = self.held.setdefault(request, 0)
        while held * self.size < tokens:
            if not self.free:
                raise UseError("pages.full", pages=self.count, size=self.size, request=request, tokens=tokens)
            table[held] = self.free.pop()
            held += 1
            self.held[request] = held

    def release(self, request: object) -> None:
        """Take back all that a request holds."""
        table, held = self.tables.pop(request), self.held.pop(request)
        self.free += table[:held].tolist()
        del self.length[request]
        self.budget.pop(request, None)
        for key in [k for k in self.memory if k[1] == request]:
            del self.memory[key]

    def slots(self, request: object, start: int, stop: int) -> Tensor:
        """Where these positions of a request lie in a pool: LongTensor [stop - start]."""
        at = torch.arange(start, stop)
        return self.tables[request][at // self.size] * self.size + at % self.size

    def pool(self, part: nn.Module, like: Stored) -> Stored:
        """The pools of a part, made when it first stores: [pages * size, ...] for each stored tensor [B T ...]."""
        if part not in self.pools:
            self.pools[part] = tuple(n.new_zeros(self.count * self.size, *n.shape[2:]) for n in like)
        return self.pools[part]

    def bytes_per_token(self) -> int:
        """What one token of one request takes in all pools."""
        return sum(p[0].numel() * p.element_size() for pools in self.pools.values() for p in pools)
