"""The keys and values that earlier steps have stored of each request, in pages.

A part stores through its Step and gets back a KVCache: a list of segments, one a request. A plain batch, packed documents, pages and the
memory of an encoder are all segments, and an op reads each where it lies.

    pages of 4 rows     pool  | 0 1 2 3 | 4 5 6 7 | 8 9 . . |        request "a" of 6 tokens holds pages [2, 0]:
    request "a"         table [2, 0]                                  its rows lie at 8 9 10 11 0 1

A page may be shared by requests with a common beginning and by a prefix cache. Before a write, a request gets its own copy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pellucid import huge_pages
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.plain_rows import PLAIN, PlainRows, Stored
from pellucid.errors import UseError


@dataclass(frozen=True)
class Span:
    """The rows [start, stop) of one request in a flattened step; `before`: its tokens that earlier steps have stored."""

    request: object
    start: int
    stop: int
    before: int = 0

    @property
    def end(self) -> int:
        """Return the request's stored tokens after this step."""
        return self.before + self.stop - self.start


@dataclass(frozen=True)
class Paged:
    """The place of a segment in its part's pools: pages of `size` rows, numbered by `table`. A native kernel reads it by pointers alone.

    start: its first position; the table's entries before it are stale, since those pages were given back.  end: after its last position.
    format: how the pools hold a row.
    """

    pools: Stored
    table: Tensor
    size: int
    end: int
    start: int = 0
    format: PlainRows = PLAIN

    def blocks(self) -> Iterator[tuple[Stored, Tensor]]:
        """Yield the stored tensors [rows ...] of each page and their positions [1 rows]. Copies nothing of rows held as they came."""
        first, last = self.start // self.size, -(-self.end // self.size)
        at = torch.arange(first * self.size, self.end, device=self.pools[0].device)[None]
        for i, page in enumerate(self.table[first:last].tolist(), first):
            a, n = page * self.size, min(self.size, self.end - i * self.size)
            yield self.format.read(self.pools, slice(a, a + n)), at[:, (i - first) * self.size :][:, :n]


class Segment:
    """One request's queries, and the keys and values that it has stored.

    rows: its slice of T.  q_at [B T], k_at [B S]: positions, -1 for padding.  read(): the stored tensors [B S ...].
    contiguous: key positions are consecutive and without padding, and end with the queries' own.
    paged: where they lie, if in pages.  memory: the keys and values of an encoder's rows, if they have no padding.
    """

    def __init__(
        self,
        request: object,
        rows: slice,
        q_at: Tensor,
        k_at: Callable[[], Tensor],
        read: Callable[[], Stored],
        contiguous: bool = False,
        paged: Paged | None = None,
        memory: Stored = (),
    ) -> None:
        self.request, self.rows, self.q_at, self.read, self.contiguous, self.paged = request, rows, q_at, read, contiguous, paged
        self._k_at, self.memory = k_at, memory

    @cached_property
    def k_at(self) -> Tensor:
        return self._k_at()


@dataclass(frozen=True)
class PagedRows:
    """One row of each of many requests in the same pools, for one call: row r stands at positions[0, r], its pages in tables[r].

    runs: if requests have several rows, the number of requests, and the first row of each and the end of the last; None: one each.
    """

    pools: Stored
    tables: Tensor
    size: int
    positions: Tensor
    format: PlainRows = PLAIN
    runs: Tensor | None = None


@dataclass(frozen=True)
class ScatteredRows:
    """One row of each of many requests whose keys lie anywhere, for one call. addresses[r]: of its keys, of its values, their length."""

    like: Stored  # one of them: its dtype and widths are those of all
    addresses: Tensor


@dataclass
class KVCache:
    """A handle on what a part has stored: one segment a request. Only an op decides how to read one."""

    segments: list[Segment]
    new: Stored = ()  # what this step added
    batched: PagedRows | ScatteredRows | None = None  # all segments for one call, where a plan prepared it


class PagedCache:
    """The KV cache of all requests, in pages of `size` rows. Parts with the same window share an allocator; every part has its own pools.

    count: pages of the parts without a window, 0 if there are none.  counts: {window: pages} of the parts with one, whose pages are freed
    as a text grows.  longest: the most tokens of one text.  format: how a row is held.  device: of the rows.  pools: the tensors
    [pages * size, ...] that the pages are rows of.
    """

    def __init__(
        self,
        count: int = 64,
        size: int = 16,
        counts: Mapping[int, int] | None = None,
        longest: int | None = None,
        format: PlainRows = PLAIN,
        device: torch.device | str | None = None,
    ) -> None:
        each: dict[int | None, int] = {None: count} if count else {}
        each.update((counts or {}).items())
        self.size, self.format = size, format
        self.device = torch.get_default_device() if device is None else torch.device(device)
        self.longest = max(each.values()) * size if longest is None else longest
        self.allocators = {window: PageAllocator(n, size, window, -(-self.longest // size)) for window, n in each.items()}
        self.windowed = [allocator for window, allocator in self.allocators.items() if window is not None]
        self.count = sum(each.values())
        self.length: dict[object, int] = {}
        self.angle_length: dict[object, int] = {}  # of a request: the least text length that rotary scaling assumes for it
        self.prompts: dict[object, tuple[Sequence[int], Sequence[int] | None]] = {}  # of a request: its ids and its source's
        self.pools: dict[nn.Module, Stored] = {}
        self.states: dict[nn.Module, Tensor] = {}  # of parts that keep one: see states.py
        self.memory: dict[tuple[nn.Module, object], tuple[Stored, Tensor, bool]] = {}  # and whether padded

    @property
    def free_pages(self) -> int:
        """Return the number of free pages."""
        return sum(len(allocator.free) for allocator in self.allocators.values())

    def missing(self, request: object, tokens: int) -> list[tuple[PageAllocator, list[int], int]]:
        """Return what `reserve` would do: for each allocator that lacks pages, the table indices to copy and the count to add."""
        length = self.length.get(request, 0)
        lack = ((allocator, *allocator.missing(request, length, tokens)) for allocator in self.allocators.values())
        return [(allocator, shared, new) for allocator, shared, new in lack if shared or new or tokens > self.longest]

    def fits(self, request: object, tokens: int) -> bool:
        """True if `reserve` would succeed now."""
        lack = self.missing(request, tokens)
        return tokens <= self.longest and all(len(shared) + new <= len(allocator.free) for allocator, shared, new in lack)

    def reserve(self, request: object, tokens: int) -> None:
        """Give the request pages for `tokens` tokens in all, so that a forward allocates nothing. A UseError if too few are free.

        Pages from its length on become its own: shared ones are copied.
        """
        lack = self.missing(request, tokens)
        for allocator, shared, new in lack:
            if tokens > self.longest or len(shared) + new > len(allocator.free):
                raise UseError("pages.full", pages=allocator.count, size=self.size, request=request, tokens=tokens)
        self.length.setdefault(request, 0)
        for allocator in self.allocators.values():
            if request not in allocator.tables:
                allocator.open(request, (), 0)
        for allocator, shared, new in lack:
            if shared:
                self.copy(allocator, request, shared)
            have = allocator.first[request] + len(allocator.allocated[request])
            for i in range(have, have + new):
                allocator.put(request, i, allocator.pop_free())

    def copy(self, allocator: PageAllocator, request: object, indices: Sequence[int]) -> None:
        """Replace the pages at these indices of a request's table by copies of its own."""
        old, new = [allocator.allocated[request][i - allocator.first[request]] for i in indices], [allocator.pop_free() for _ in indices]
        for pool in (pool for part, pool in self.stores() if self.of(part) is allocator):
            rows = pool.unflatten(0, (allocator.count, -1))
            rows[new] = rows[old]
        for i, page in zip(indices, new, strict=True):
            allocator.put(request, i, page)

    def advance(self, request: object, length: int) -> None:
        """Set the request's stored length, and free the pages that no later query sees."""
        self.length[request] = length
        for allocator in self.windowed:
            allocator.free_outgrown(request, length)

    def begin(self, request: object, pages: Mapping[int | None, Sequence[int]], tokens: int) -> None:
        """Start a request whose first `tokens` tokens are stored already. pages: {window: the last pages that they fill}."""
        assert request not in self.length
        for window, allocator in self.allocators.items():
            allocator.open(request, pages.get(window, ()), tokens)
        self.length[request] = tokens

    def fork(self, request: object, new: object, tokens: int | None = None) -> None:
        """Start `new` with the stored tokens of `request`, or the first `tokens` of them. Both share pages until one of them writes."""
        n = self.length[request] if tokens is None else tokens
        last = -(-n // self.size)
        pages = {window: a.allocated[request][: last - a.first[request]] for window, a in self.allocators.items()}
        self.begin(new, pages, n)
        if request in self.angle_length:
            self.angle_length[new] = self.angle_length[request]
        self.prompts |= {new: self.prompts[request]} if request in self.prompts else {}
        for part, owner in list(self.memory):
            if owner == request:
                self.memory[part, new] = self.memory[part, request]

    def release(self, request: object) -> None:
        """Forget a request and free its pages. Does nothing for one that has none."""
        for allocator in self.allocators.values():
            allocator.release(request)
        for book in (self.length, self.angle_length, self.prompts):
            book.pop(request, None)
        for key in [k for k in self.memory if k[1] == request]:
            del self.memory[key]

    def holders(self) -> set[object]:
        """Return every request that has a table."""
        tables = (table for g in self.allocators.values() for table in (g.tables, g.allocated, g.first))
        noted = (self.length, self.angle_length, self.prompts, *tables)
        return {request for table in noted for request in table} | {request for _, request in self.memory}

    def clear(self) -> None:
        """Free every page, whatever state the tables are in. The pools stay, since recorded plans point to them."""
        for allocator in self.allocators.values():
            allocator.clear()
        for book in (self.length, self.angle_length, self.prompts, self.memory):
            book.clear()

    def of(self, part: nn.Module) -> PageAllocator:
        """Return the allocator for a part, by its `window`."""
        return self.allocators.get(getattr(part, "window", None)) or self.allocators[None]

    def pool(self, part: nn.Module, like: Stored) -> Stored:
        """Return the pools of a part, made at its first store: rows [pages * size, ...] for tensors like these, [B T ...]."""
        if part not in self.pools:
            self.pools[part] = self.format.pools(like, self.of(part).count * self.size)
        return self.pools[part]

    def state_pool(self, part: nn.Module, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the places for states of a part, made at its first step: two for each page, [2·pages ...] in the dtype of `like`."""
        if part not in self.states:
            self.states[part] = huge_pages.zeros((2 * self.of(part).count, *shape), like.dtype, like.device)
        return self.states[part]

    def stores(self) -> Iterator[tuple[nn.Module, Tensor]]:
        """Yield every tensor that pages are parts of, pools of rows and of states, with the part whose it is."""
        yield from ((part, pool) for part, pools in self.pools.items() for pool in pools)
        yield from self.states.items()

    def bytes_per_token(self) -> int:
        """Return the bytes of one token of one request in all pools of rows."""
        return sum(map(row_bytes, self.pools.values()))

    def bytes_held(self, request: object) -> int:
        """Return the bytes of the request's pages in all pools, shared or not."""
        return sum(len(self.of(part).allocated[request]) * (pool.nbytes // self.of(part).count) for part, pool in self.stores())

    def sound(self, cached: Mapping[int | None, Iterable[int]] | None = None) -> bool:
        """True if every page is accounted for. cached: {window: the pages that a prefix cache holds}."""
        texts = all(g.oldest(n) >= g.first[r] and -(-n // g.size) <= g.first[r] + len(g.allocated[r]) for g, r, n in self._texts())
        return texts and all(allocator.sound((cached or {}).get(window, ())) for window, allocator in self.allocators.items())

    def _texts(self) -> Iterator[tuple[PageAllocator, object, int]]:
        return ((g, r, n) for g in self.allocators.values() for r, n in self.length.items())


def row_bytes(pools: Stored) -> int:
    """Return the bytes of one row of all of a part's pools."""
    return sum(p[0].numel() * p.element_size() for p in pools)
