"""The keys and values that earlier steps have stored of each request, in pages.

A part stores through its Step and gets back a KVCache: a list of segments, one a request. A plain batch, packed documents, pages and the
memory of an encoder are all segments, and an op reads each where it lies.

    pages of 4 rows     pool  | 0 1 2 3 | 4 5 6 7 | 8 9 . . |        request "a" of 6 tokens holds pages [2, 0]:
    request "a"         table [2, 0]                                  its rows lie at 8 9 10 11 0 1

A page may be shared by requests with a common beginning and by a prefix cache. Before a write, a request gets its own copy.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pellucid.errors import UseError

Stored = tuple[Tensor, ...]


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
    """

    pools: Stored
    table: Tensor
    size: int
    end: int
    start: int = 0

    def blocks(self) -> Iterator[tuple[Stored, Tensor]]:
        """Yield each page's views of the stored tensors [rows ...] and their positions [1 rows]. Copies nothing."""
        for i in range(self.start // self.size, -(-self.end // self.size)):
            a, n = int(self.table[i]) * self.size, min(self.size, self.end - i * self.size)
            at = torch.arange(i * self.size, i * self.size + n, device=self.pools[0].device)
            yield tuple(p[a : a + n] for p in self.pools), at[None]


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
    """One row of each of many requests in the same pools, for one call: row r stands at positions[0, r], its pages in tables[r]."""

    pools: Stored
    tables: Tensor
    size: int
    positions: Tensor


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


class PageAllocator:
    """The page numbers, tables and reference counts of the parts that share one window.

    A page is free, or has one reference for each table and each prefix cache that holds it.  window: the most positions that a query sees,
    its own included; None: all.  longest: the most pages of one text.
    """

    def __init__(self, count: int, size: int, window: int | None, longest: int) -> None:
        self.count, self.size, self.window, self.longest = count, size, window, longest
        self.free = list(range(count))[::-1]
        self.references = [0] * count
        self.clock = 0  # allocations so far
        self.allocated_at = [0] * count  # the clock when each page was last allocated: a late reader sees that its page is another's now
        self.tables: dict[object, Tensor] = {}  # of fixed length, so that a recorded plan may point to one
        self.allocated: dict[object, list[int]] = {}  # the page numbers in use of each request's table
        self.first: dict[object, int] = {}  # the index in the table of the first of them: pages before it were freed under a window
        self.cached: set[int] = set()  # pages that a prefix cache holds
        self.idle = 0  # pages that a prefix cache alone holds

    def pop_free(self) -> int:
        """Pop a free page. The caller adds the reference and fills it."""
        self.clock += 1
        page = self.free.pop()
        self.allocated_at[page] = self.clock
        return page

    def add_reference(self, page: int) -> None:
        """Add a reference to a page."""
        self.idle -= self.references[page] == 1 and page in self.cached
        self.references[page] += 1

    def drop_reference(self, page: int) -> None:
        """Remove a reference from a page; without any it is free."""
        self.references[page] -= 1
        self.idle += self.references[page] == 1 and page in self.cached
        if not self.references[page]:
            self.free.append(page)

    def hold(self, page: int) -> None:
        """Add the prefix cache's reference to a page that a request has filled."""
        assert self.references[page] and page not in self.cached
        self.add_reference(page)
        self.cached.add(page)

    def release_hold(self, page: int) -> None:
        """Remove the prefix cache's reference from a page."""
        self.idle -= self.references[page] == 1
        self.cached.remove(page)
        self.drop_reference(page)

    def open(self, request: object, pages: Sequence[int], tokens: int) -> None:
        """Open a request's table of `tokens` tokens whose last pages are `pages`."""
        self.first[request], self.allocated[request] = -(-tokens // self.size) - len(pages), list(pages)
        self.tables[request] = torch.zeros(self.longest, dtype=torch.long)
        for i, page in enumerate(pages, self.first[request]):
            self.tables[request][i] = page
            self.add_reference(page)

    def page(self, request: object, i: int) -> int | None:
        """Return the number of a text's i-th page, None if it was freed under a window."""
        at = i - self.first[request]
        return self.allocated[request][at] if at >= 0 else None

    def put(self, request: object, i: int, page: int) -> None:
        """Put `page` at index i of a table, or append it."""
        pages, at = self.allocated[request], i - self.first[request]
        self.add_reference(page)
        if at < len(pages):
            self.drop_reference(pages[at])
        pages[at : at + 1] = [page]
        self.tables[request][i] = page

    def missing(self, request: object, length: int, tokens: int) -> tuple[list[int], int]:
        """Return what a write from `length` to `tokens` needs: table indices of shared pages to copy, the count of new pages."""
        pages, first, stop = self.allocated.get(request, []), self.first.get(request, 0), -(-tokens // self.size)
        have = first + len(pages)
        shared = [i for i in range(length // self.size, min(stop, have)) if self.references[pages[i - first]] > 1]
        return shared, max(0, stop - have)

    def oldest(self, length: int) -> int:
        """Return the table index of the first page that a query at position `length` may see."""
        return 0 if self.window is None else max(0, length + 1 - self.window) // self.size

    def free_outgrown(self, request: object, length: int) -> None:
        """Free the pages that no query from the end of the last full page on sees: from there another text may go on.

        Their numbers stay in the table, in bounds and unread.
        """
        pages, gone = self.allocated[request], self.oldest(length // self.size * self.size) - self.first[request]
        for page in pages[: max(0, gone)]:
            self.drop_reference(page)
        del pages[: max(0, gone)]
        self.first[request] += max(0, gone)

    def release(self, request: object) -> None:
        for page in self.allocated.pop(request, []):
            self.drop_reference(page)
        self.tables.pop(request, None)
        self.first.pop(request, None)

    def clear(self) -> None:
        """Free every page, whatever state the tables are in; in place, since recorded plans point to them."""
        self.free[:], self.references[:], self.idle = range(self.count - 1, -1, -1), [0] * self.count, 0
        for book in (self.tables, self.allocated, self.first, self.cached):
            book.clear()

    def slots(self, request: object, start: int, stop: int) -> Tensor:
        """Return the pool rows of a request's positions start ... stop - 1: LongTensor [stop - start]."""
        at = torch.arange(start, stop)
        return self.tables[request][at // self.size] * self.size + at % self.size

    def sound(self, cached: Iterable[int]) -> bool:
        """True if every reference is a table's or of `cached`, and a page is free exactly if it has none."""
        cached = list(cached)
        counted = Counter(cached)
        for request, pages in self.allocated.items():
            counted.update(pages)
            if self.tables[request][self.first[request] :][: len(pages)].tolist() != pages:
                return False
        free = set(self.free)
        return (
            len(free) == len(self.free)
            and self.references == [counted[p] for p in range(self.count)]
            and free == {p for p in range(self.count) if not counted[p]}
            and sorted(self.cached) == sorted(cached)
            and self.idle == sum(counted[p] == 1 for p in cached)
            and self.tables.keys() == self.allocated.keys() == self.first.keys()
        )


class PagedCache:
    """The KV cache of all requests, in pages of `size` rows. Parts with the same window share an allocator; every part has its own pools.

    count: pages of the parts without a window, 0 if there are none.  counts: {window: pages} of the parts with one, whose pages are freed
    as a text grows.  longest: the most tokens of one text.  pools: the tensors [pages * size, ...] that the pages are rows of.
    """

    def __init__(self, count: int = 64, size: int = 16, counts: Mapping[int, int] | None = None, longest: int | None = None) -> None:
        each: dict[int | None, int] = {None: count} if count else {}
        each.update((counts or {}).items())
        self.size = size
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
        """Return the pools of a part, made at its first store: [pages * size, ...] for each tensor of `like` [B T ...]."""
        if part not in self.pools:
            self.pools[part] = tuple(n.new_zeros(self.of(part).count * self.size, *n.shape[2:]) for n in like)
        return self.pools[part]

    def state_pool(self, part: nn.Module, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the places for states of a part, made at its first step: two for each page, [2·pages ...] in the dtype of `like`."""
        if part not in self.states:
            self.states[part] = like.new_zeros(2 * self.of(part).count, *shape)
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
