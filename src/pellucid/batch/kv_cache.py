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
    contiguous: the keys stand at 0, 1, 2 ... without padding (under a window, from a later one on), and the queries are the last of them.
    paged: where they lie, if in pages.  kept: the tensors of an encoder's memory without padding.
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
        kept: Stored = (),
    ) -> None:
        self.request, self.rows, self.q_at, self.read, self.contiguous, self.paged = request, rows, q_at, read, contiguous, paged
        self._k_at, self.kept = k_at, kept

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
    """One row of each of many requests whose keys lie anywhere, for one call: places[r] has their addresses and length."""

    like: Stored  # one of them: its dtype and widths are those of all
    places: Tensor


@dataclass
class KVCache:
    """A handle on what a part has stored: one segment a request. Only an op decides how to read one."""

    segments: list[Segment]
    new: Stored = ()  # what this step added
    batched: PagedRows | ScatteredRows | None = None  # all segments for one call, where a plan prepared it


class PagePool:
    """The page numbers of all parts with one window, and their reference counts.

    A page is free, or has one reference for each table and each prefix cache that holds it.  window: the most positions that a query sees,
    its own included; None: all.  longest: the most pages of one text.
    """

    def __init__(self, count: int, size: int, window: int | None, longest: int) -> None:
        self.count, self.size, self.window, self.longest = count, size, window, longest
        self.free = list(range(count))[::-1]
        self.references = [0] * count
        self.taken, self.clock = [0] * count, 0  # when each page was last allocated: rows read later are another request's
        self.tables: dict[object, Tensor] = {}  # of fixed length, so that a recorded plan may point to one
        self.allocated: dict[object, list[int]] = {}  # the page numbers in a table,
        self.first: dict[object, int] = {}  # from this place on: what came before was given back
        self.kept: set[int] = set()  # by a prefix cache
        self.idle = 0  # pages that only a prefix cache holds

    def fresh(self) -> int:
        """Pop a free page. The caller adds the reference and fills it."""
        self.clock += 1
        page = self.free.pop()
        self.taken[page] = self.clock
        return page

    def take(self, page: int) -> None:
        """Add a reference to a page."""
        self.idle -= self.references[page] == 1 and page in self.kept
        self.references[page] += 1

    def give(self, page: int) -> None:
        """Remove a reference from a page; without any it is free."""
        self.references[page] -= 1
        self.idle += self.references[page] == 1 and page in self.kept
        if not self.references[page]:
            self.free.append(page)

    def keep(self, page: int) -> None:
        """Give the prefix cache a reference to a page that a request has filled."""
        assert self.references[page] and page not in self.kept
        self.take(page)
        self.kept.add(page)

    def drop(self, page: int) -> None:
        """Release a page from the prefix cache."""
        self.idle -= self.references[page] == 1
        self.kept.remove(page)
        self.give(page)

    def open(self, request: object, pages: Sequence[int], tokens: int) -> None:
        """Open a request's table of `tokens` tokens whose last pages are `pages`."""
        self.first[request], self.allocated[request] = -(-tokens // self.size) - len(pages), list(pages)
        self.tables[request] = torch.zeros(self.longest, dtype=torch.long)
        for i, page in enumerate(pages, self.first[request]):
            self.tables[request][i] = page
            self.take(page)

    def page(self, request: object, i: int) -> int | None:
        """Return the i-th page of a text, None if it was given back."""
        at = i - self.first[request]
        return self.allocated[request][at] if at >= 0 else None

    def put(self, request: object, i: int, page: int) -> None:
        """Put `page` in the i-th place of a table, or append it."""
        pages, at = self.allocated[request], i - self.first[request]
        self.take(page)
        if at < len(pages):
            self.give(pages[at])
        pages[at : at + 1] = [page]
        self.tables[request][i] = page

    def missing(self, request: object, length: int, tokens: int) -> tuple[list[int], int]:
        """Return what a write from `length` up to `tokens` needs: the places of shared pages to copy, and the count of new pages."""
        pages, first, stop = self.allocated.get(request, []), self.first.get(request, 0), -(-tokens // self.size)
        have = first + len(pages)
        shared = [i for i in range(length // self.size, min(stop, have)) if self.references[pages[i - first]] > 1]
        return shared, max(0, stop - have)

    def oldest(self, length: int) -> int:
        """Return the place of the first page that a query at position `length` may see."""
        return 0 if self.window is None else max(0, length + 1 - self.window) // self.size

    def give_back(self, request: object, length: int) -> None:
        """Give back the pages that no query from position `length` on sees. Their numbers stay in the table, in bounds and unread."""
        pages, gone = self.allocated[request], self.oldest(length) - self.first[request]
        for page in pages[: max(0, gone)]:
            self.give(page)
        del pages[: max(0, gone)]
        self.first[request] += max(0, gone)

    def release(self, request: object) -> None:
        for page in self.allocated.pop(request, []):
            self.give(page)
        self.tables.pop(request, None)
        self.first.pop(request, None)

    def clear(self) -> None:
        """Free every page, whatever state the tables are in; in place, since recorded plans point to them."""
        self.free[:], self.references[:], self.idle = range(self.count - 1, -1, -1), [0] * self.count, 0
        for book in (self.tables, self.allocated, self.first, self.kept):
            book.clear()

    def slots(self, request: object, start: int, stop: int) -> Tensor:
        """Return the pool rows of a request's positions start ... stop - 1: LongTensor [stop - start]."""
        at = torch.arange(start, stop)
        return self.tables[request][at // self.size] * self.size + at % self.size

    def sound(self, kept: Iterable[int]) -> bool:
        """True if every reference is a table's or one of `kept`, and a page is free exactly if it has none."""
        kept = list(kept)
        counted = Counter(kept)
        for request, pages in self.allocated.items():
            counted.update(pages)
            if self.tables[request][self.first[request] :][: len(pages)].tolist() != pages:
                return False
        free = set(self.free)
        return (
            len(free) == len(self.free)
            and self.references == [counted[p] for p in range(self.count)]
            and free == {p for p in range(self.count) if not counted[p]}
            and sorted(self.kept) == sorted(kept)
            and self.idle == sum(counted[p] == 1 for p in kept)
            and self.tables.keys() == self.allocated.keys() == self.first.keys()
        )


class PagedCache:
    """The KV cache of all requests, in pages of `size` rows. A request has a table of pages; every part has pools for the same tables.

    count: pages of the parts without a window, 0 if there are none.  counts: {window: pages} of the parts with one, which have tables of
    their own and give pages back as a text grows.  longest: the most tokens of one text.
    """

    def __init__(self, count: int = 64, size: int = 16, counts: Mapping[int, int] | None = None, longest: int | None = None) -> None:
        each: dict[int | None, int] = {None: count} if count else {}
        each.update((counts or {}).items())
        self.size = size
        self.longest = max(each.values()) * size if longest is None else longest
        self.groups = {window: PagePool(n, size, window, -(-self.longest // size)) for window, n in each.items()}
        self.windowed = [group for window, group in self.groups.items() if window is not None]
        self.count = sum(each.values())
        first = next(iter(self.groups.values()))
        self.free, self.tables, self.allocated = first.free, first.tables, first.allocated  # all pages, in a model without windows
        self.length: dict[object, int] = {}
        self.together: dict[object, int] = {}  # the first tokens of a request that are read as one text, where the engine says so
        self.pools: dict[nn.Module, Stored] = {}
        self.memory: dict[tuple[nn.Module, object], tuple[Stored, Tensor, bool]] = {}  # and whether padded

    @property
    def free_pages(self) -> int:
        """Return the number of free pages."""
        return sum(len(group.free) for group in self.groups.values())

    def missing(self, request: object, tokens: int) -> list[tuple[PagePool, list[int], int]]:
        """Return what `reserve` would do: for each pool that lacks pages, the places to copy and the count to add."""
        length = self.length.get(request, 0)
        lack = ((group, *group.missing(request, length, tokens)) for group in self.groups.values())
        return [(group, shared, new) for group, shared, new in lack if shared or new or tokens > self.longest]

    def fits(self, request: object, tokens: int) -> bool:
        """True if `reserve` would succeed now."""
        lack = self.missing(request, tokens)
        return tokens <= self.longest and all(len(shared) + new <= len(group.free) for group, shared, new in lack)

    def reserve(self, request: object, tokens: int) -> None:
        """Give the request pages for `tokens` tokens in all, so that a forward allocates nothing. A UseError if too few are free.

        Pages from its length on become its own: shared ones are copied.
        """
        lack = self.missing(request, tokens)
        for group, shared, new in lack:
            if tokens > self.longest or len(shared) + new > len(group.free):
                raise UseError("pages.full", pages=group.count, size=self.size, request=request, tokens=tokens)
        self.length.setdefault(request, 0)
        for group in self.groups.values():
            if request not in group.tables:
                group.open(request, (), 0)
        for group, shared, new in lack:
            if shared:
                self.copy(group, request, shared)
            have = group.first[request] + len(group.allocated[request])
            for i in range(have, have + new):
                group.put(request, i, group.fresh())

    def copy(self, group: PagePool, request: object, places: Sequence[int]) -> None:
        """Replace the pages in these places of a request's table by copies of its own."""
        old, new = [group.allocated[request][i - group.first[request]] for i in places], [group.fresh() for _ in places]
        for part, pools in self.pools.items():
            if self.of(part) is group:
                for pool in pools:
                    rows = pool.unflatten(0, (-1, self.size))
                    rows[new] = rows[old]
        for i, page in zip(places, new, strict=True):
            group.put(request, i, page)

    def advance(self, request: object, length: int) -> None:
        """Set the request's stored length, and give back pages that no later query sees."""
        self.length[request] = length
        for group in self.windowed:
            group.give_back(request, length)

    def begin(self, request: object, pages: Mapping[int | None, Sequence[int]], tokens: int) -> None:
        """Start a request whose first `tokens` tokens are stored already. pages: {window: the last pages that they fill}."""
        assert request not in self.length
        for window, group in self.groups.items():
            group.open(request, pages.get(window, ()), tokens)
        self.length[request] = tokens

    def fork(self, request: object, new: object) -> None:
        """Start `new` with the stored tokens of `request`. Both share pages until one of them writes."""
        n = self.length[request]
        pages = {r: group.allocated[request][: -(-n // self.size) - group.first[request]] for r, group in self.groups.items()}
        self.begin(new, pages, n)
        if request in self.together:
            self.together[new] = self.together[request]
        for part, owner in list(self.memory):
            if owner == request:
                self.memory[part, new] = self.memory[part, request]

    def release(self, request: object) -> None:
        """Forget a request and free its pages. Does nothing for one that has none."""
        for group in self.groups.values():
            group.release(request)
        self.length.pop(request, None)
        self.together.pop(request, None)
        for key in [k for k in self.memory if k[1] == request]:
            del self.memory[key]

    def holders(self) -> set[object]:
        """Return every request that has a table."""
        noted = (self.length, self.together, *(table for g in self.groups.values() for table in (g.tables, g.allocated, g.first)))
        return {request for table in noted for request in table} | {request for _, request in self.memory}

    def clear(self) -> None:
        """Free every page, whatever state the tables are in. The pools stay, since recorded plans point to them."""
        for group in self.groups.values():
            group.clear()
        for book in (self.length, self.together, self.memory):
            book.clear()

    def of(self, part: nn.Module) -> PagePool:
        """Return the pool of page numbers for a part, by its `window`."""
        return self.groups.get(getattr(part, "window", None)) or self.groups[None]

    def slots(self, request: object, start: int, stop: int) -> Tensor:
        """Return the rows of these positions in the pools of parts without a window: LongTensor [stop - start]."""
        return next(iter(self.groups.values())).slots(request, start, stop)

    def pool(self, part: nn.Module, like: Stored) -> Stored:
        """Return the pools of a part, made at its first store: [pages * size, ...] for each tensor of `like` [B T ...]."""
        if part not in self.pools:
            self.pools[part] = tuple(n.new_zeros(self.of(part).count * self.size, *n.shape[2:]) for n in like)
        return self.pools[part]

    def bytes_per_token(self) -> int:
        """Return the bytes of one token of one request in all pools."""
        return sum(map(row_bytes, self.pools.values()))

    def bytes_held(self, request: object) -> int:
        """Return the bytes of the request's pages in all pools, shared or not."""
        return sum(len(self.of(part).allocated[request]) * self.size * row_bytes(pools) for part, pools in self.pools.items())

    def sound(self, kept: Mapping[int | None, Iterable[int]] | None = None) -> bool:
        """True if every page is accounted for. kept: {window: the pages that a prefix cache holds}."""
        texts = all(g.oldest(n) >= g.first[r] and -(-n // g.size) <= g.first[r] + len(g.allocated[r]) for g, r, n in self._texts())
        return texts and all(group.sound((kept or {}).get(window, ())) for window, group in self.groups.items())

    def _texts(self) -> Iterator[tuple[PagePool, object, int]]:
        return ((g, r, n) for g in self.groups.values() for r, n in self.length.items())


def row_bytes(pools: Stored) -> int:
    """Return the bytes of one row of all of a part's pools."""
    return sum(p[0].numel() * p.element_size() for p in pools)


def windows_of(module: nn.Module) -> set[int | None]:
    """Return the windows of a model's parts, in positions, a query's own included; None: no window."""
    return {part.window for part in module.modules() if hasattr(part, "window")}  # type: ignore[misc]


def most_pages(window: int, rows: int, size: int) -> int:
    """Return the most pages of `size` that a text holds under a window when `rows` are stored at once, wherever page edges fall."""
    return (window - 1 + rows + size - 2) // size + 1
