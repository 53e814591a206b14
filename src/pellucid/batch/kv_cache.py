"""What earlier steps have stored, and where it lies.

A part stores through its Step and gets back a KVCache: a list of segments, one a request. A plain batch, packed documents, pages and the
memory of an encoder are all segments, and an op reads each where it lies.

    pages of 4 rows     pool  | 0 1 2 3 | 4 5 6 7 | 8 9 . . |        request "a" of 6 tokens holds pages [2, 0]:
    request "a"         table [2, 0]                                  its rows lie at 8 9 10 11 0 1

Several may hold a page: requests of one beginning, and a prefix cache. Whoever is to write into it gets a copy first.
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
    """Where a segment lies in its part's pools: rows of `size` under the numbers of `table`. A native kernel reads it by pointers alone.

    start: its first position. What the table says of pages before it was given back, and belongs to others.
    """

    pools: Stored
    table: Tensor
    size: int
    end: int
    start: int = 0

    def blocks(self) -> Iterator[tuple[Stored, Tensor]]:
        """Page by page: views of the stored tensors [rows ...], and their positions [1 rows]. Nothing is copied."""
        for i in range(self.start // self.size, -(-self.end // self.size)):
            a, n = int(self.table[i]) * self.size, min(self.size, self.end - i * self.size)
            at = torch.arange(i * self.size, i * self.size + n, device=self.pools[0].device)
            yield tuple(p[a : a + n] for p in self.pools), at[None]


class Segment:
    """One request's queries and the keys they may meet.

    rows cuts T; q_at [B T] and k_at [B S] are positions, -1 for padding; read() gives the stored tensors, [B S ...] each. whole: the keys
    are positions 0, 1, 2 ... without padding (under a window, from a later one on), and the queries are the last of them. paged: where they
    lie, if in pages.  kept: the tensors of a memory without padding.
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
class PagedRows:
    """The segments of a cache at once, one row each, in the same pools: row r of T stands at positions[0, r], under tables[r]."""

    pools: Stored
    tables: Tensor
    size: int
    positions: Tensor


@dataclass(frozen=True)
class ScatteredRows:
    """The segments of a cache at once, one row each, that lie wherever they lie: row r of T meets the keys and values of places[r]."""

    like: Stored  # of their kind
    places: Tensor


@dataclass
class KVCache:
    """A handle on what a part stored. `segments` is all that an op reads; only an op decides how to read a segment."""

    segments: list[Segment]
    new: Stored = ()  # what this step added
    batched: PagedRows | ScatteredRows | None = None


class PagePool:
    """The page numbers of parts that look equally far back, and who holds them.

    A page is free, or has as many references as tables and prefix caches hold it.  reach: how many positions a query sees at most, itself
    included; None: all.  longest: the most pages of one text.
    """

    def __init__(self, count: int, size: int, window: int | None, longest: int) -> None:
        self.count, self.size, self.window, self.longest = count, size, window, longest
        self.free = list(range(count))[::-1]
        self.references = [0] * count
        self.taken, self.clock = [0] * count, 0  # when each page last came to someone: rows read later than that are not his
        self.tables: dict[object, Tensor] = {}  # of fixed length, so that a recorded plan may point to one
        self.held: dict[object, list[int]] = {}  # the numbers in a table,
        self.first: dict[object, int] = {}  # from this place on: what came before was given back
        self.kept: set[int] = set()  # by a prefix cache
        self.idle = 0  # pages that only a prefix cache holds

    def fresh(self) -> int:
        """A free page, which whoever takes it will fill."""
        self.clock += 1
        page = self.free.pop()
        self.taken[page] = self.clock
        return page

    def take(self, page: int) -> None:
        """One more reference."""
        self.idle -= self.references[page] == 1 and page in self.kept
        self.references[page] += 1

    def give(self, page: int) -> None:
        """One reference less."""
        self.references[page] -= 1
        self.idle += self.references[page] == 1 and page in self.kept
        if not self.references[page]:
            self.free.append(page)

    def keep(self, page: int) -> None:
        """A prefix cache holds a page that a request has filled."""
        assert self.references[page] and page not in self.kept
        self.take(page)
        self.kept.add(page)

    def drop(self, page: int) -> None:
        """The prefix cache holds it no longer."""
        self.idle -= self.references[page] == 1
        self.kept.remove(page)
        self.give(page)

    def open(self, request: object, pages: Sequence[int], tokens: int) -> None:
        """A table whose last page of `tokens` is the last of these."""
        self.first[request], self.held[request] = -(-tokens // self.size) - len(pages), list(pages)
        self.tables[request] = torch.zeros(self.longest, dtype=torch.long)
        for i, page in enumerate(pages, self.first[request]):
            self.tables[request][i] = page
            self.take(page)

    def page(self, request: object, i: int) -> int | None:
        """The i-th page of a text, None where it was given back."""
        at = i - self.first[request]
        return self.held[request][at] if at >= 0 else None

    def put(self, request: object, i: int, page: int) -> None:
        """Another page in the place of the i-th, or as the next one."""
        held, at = self.held[request], i - self.first[request]
        self.take(page)
        if at < len(held):
            self.give(held[at])
        held[at : at + 1] = [page]
        self.tables[request][i] = page

    def missing(self, request: object, length: int, tokens: int) -> tuple[list[int], int]:
        """What a request of this length lacks to write up to `tokens`: places of pages that others hold too, and how many new ones."""
        held, first, stop = self.held.get(request, []), self.first.get(request, 0), -(-tokens // self.size)
        have = first + len(held)
        shared = [i for i in range(length // self.size, min(stop, have)) if self.references[held[i - first]] > 1]
        return shared, max(0, stop - have)

    def oldest(self, length: int) -> int:
        """The place of the first page that the query at position `length` may see."""
        return 0 if self.window is None else max(0, length + 1 - self.window) // self.size

    def give_back(self, request: object, length: int) -> None:
        """What queries from this position on never see. The table keeps the old numbers, which are in bounds, and nobody reads them."""
        held, gone = self.held[request], self.oldest(length) - self.first[request]
        for page in held[: max(0, gone)]:
            self.give(page)
        del held[: max(0, gone)]
        self.first[request] += max(0, gone)

    def release(self, request: object) -> None:
        for page in self.held.pop(request, []):
            self.give(page)
        self.tables.pop(request, None)
        self.first.pop(request, None)

    def clear(self) -> None:
        """Free every page, whatever state the books are in; in place, for others point to them."""
        self.free[:], self.references[:], self.idle = range(self.count - 1, -1, -1), [0] * self.count, 0
        for book in (self.tables, self.held, self.first, self.kept):
            book.clear()

    def slots(self, request: object, start: int, stop: int) -> Tensor:
        """Where these positions of a request lie in a pool: LongTensor [stop - start]."""
        at = torch.arange(start, stop)
        return self.tables[request][at // self.size] * self.size + at % self.size

    def sound(self, kept: Iterable[int]) -> bool:
        """Every reference is a table's or one of `kept`, and a page is free exactly if it has none."""
        kept = list(kept)
        counted = Counter(kept)
        for request, pages in self.held.items():
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
            and self.tables.keys() == self.held.keys() == self.first.keys()
        )


class PagedCache:
    """Storage in pages of a few rows. A request holds a table of pages; every part has its own pools, addressed by the same tables.

    count: pages of the parts that see everything, 0 where there are none.  size: rows a page.  counts: by `window`, pages of the parts that
    look back no farther: they have tables of their own, and give pages back as a text grows.  longest: the most tokens of one text.
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
        self.free, self.tables, self.held = first.free, first.tables, first.held  # all there is, without windows
        self.length: dict[object, int] = {}
        self.together: dict[object, int] = {}  # how many first tokens of a request are read as one text, where its owner knows
        self.pools: dict[nn.Module, Stored] = {}
        self.memory: dict[tuple[nn.Module, object], tuple[Stored, Tensor, bool]] = {}  # and whether padded

    @property
    def free_pages(self) -> int:
        """How many pages nobody holds."""
        return sum(len(group.free) for group in self.groups.values())

    def missing(self, request: object, tokens: int) -> list[tuple[PagePool, list[int], int]]:
        """What reserve would do: in which groups it would copy the pages in these places, and add so many."""
        length = self.length.get(request, 0)
        lack = ((group, *group.missing(request, length, tokens)) for group in self.groups.values())
        return [(group, shared, new) for group, shared, new in lack if shared or new or tokens > self.longest]

    def fits(self, request: object, tokens: int) -> bool:
        """Whether reserve would succeed now."""
        lack = self.missing(request, tokens)
        return tokens <= self.longest and all(len(shared) + new <= len(group.free) for group, shared, new in lack)

    def reserve(self, request: object, tokens: int) -> None:
        """Give the request pages for this many tokens in all, its own from its length on, so that a forward allocates nothing."""
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
            have = group.first[request] + len(group.held[request])
            for i in range(have, have + new):
                group.put(request, i, group.fresh())

    def copy(self, group: PagePool, request: object, places: Sequence[int]) -> None:
        """Pages of the request's own for those in these places of its table, with the same rows."""
        old, new = [group.held[request][i - group.first[request]] for i in places], [group.fresh() for _ in places]
        for part, pools in self.pools.items():
            if self.of(part) is group:
                for pool in pools:
                    rows = pool.unflatten(0, (-1, self.size))
                    rows[new] = rows[old]
        for i, page in zip(places, new, strict=True):
            group.put(request, i, page)

    def advance(self, request: object, length: int) -> None:
        """The request has stored so many tokens; pages that no later query sees are given back."""
        self.length[request] = length
        for group in self.windowed:
            group.give_back(request, length)

    def begin(self, request: object, pages: Mapping[int | None, Sequence[int]], tokens: int) -> None:
        """A new request of `tokens` tokens, which others have stored: of each group the last pages that they fill."""
        assert request not in self.length
        for window, group in self.groups.items():
            group.open(request, pages.get(window, ()), tokens)
        self.length[request] = tokens

    def fork(self, request: object, new: object) -> None:
        """A new request with the same cache. Both hold the same pages until one of them writes."""
        n = self.length[request]
        pages = {r: group.held[request][: -(-n // self.size) - group.first[request]] for r, group in self.groups.items()}
        self.begin(new, pages, n)
        if request in self.together:
            self.together[new] = self.together[request]
        for part, owner in list(self.memory):
            if owner == request:
                self.memory[part, new] = self.memory[part, request]

    def release(self, request: object) -> None:
        """Take back all that a request holds; of one that holds nothing, nothing."""
        for group in self.groups.values():
            group.release(request)
        self.length.pop(request, None)
        self.together.pop(request, None)
        for key in [k for k in self.memory if k[1] == request]:
            del self.memory[key]

    def holders(self) -> set[object]:
        """Every request of which anything is noted."""
        noted = (self.length, self.together, *(table for g in self.groups.values() for table in (g.tables, g.held, g.first)))
        return {request for table in noted for request in table} | {request for _, request in self.memory}

    def clear(self) -> None:
        """Free every page, whatever state the books are in. The pools stay: recorded plans point to them."""
        for group in self.groups.values():
            group.clear()
        for book in (self.length, self.together, self.memory):
            book.clear()

    def of(self, part: nn.Module) -> PagePool:
        """The group of a part, by its `window`."""
        return self.groups.get(getattr(part, "window", None)) or self.groups[None]

    def slots(self, request: object, start: int, stop: int) -> Tensor:
        """Where these positions lie in the pools of parts that see everything: LongTensor [stop - start]."""
        return next(iter(self.groups.values())).slots(request, start, stop)

    def pool(self, part: nn.Module, like: Stored) -> Stored:
        """The pools of a part, made when it first stores: [pages * size, ...] for each stored tensor [B T ...]."""
        if part not in self.pools:
            self.pools[part] = tuple(n.new_zeros(self.of(part).count * self.size, *n.shape[2:]) for n in like)
        return self.pools[part]

    def bytes_per_token(self) -> int:
        """What one token of one request takes in all pools."""
        return sum(map(row_bytes, self.pools.values()))

    def bytes_held(self, request: object) -> int:
        """What the request's pages take in all pools, whoever else holds them."""
        return sum(len(self.of(part).held[request]) * self.size * row_bytes(pools) for part, pools in self.pools.items())

    def sound(self, kept: Mapping[int | None, Iterable[int]] | None = None) -> bool:
        """Whether every page is accounted for; kept: those that a prefix cache holds, by group."""
        texts = all(g.oldest(n) >= g.first[r] and -(-n // g.size) <= g.first[r] + len(g.held[r]) for g, r, n in self._texts())
        return texts and all(group.sound((kept or {}).get(window, ())) for window, group in self.groups.items())

    def _texts(self) -> Iterator[tuple[PagePool, object, int]]:
        return ((g, r, n) for g in self.groups.values() for r, n in self.length.items())


def row_bytes(pools: Stored) -> int:
    """Bytes of one row of all of a part's pools."""
    return sum(p[0].numel() * p.element_size() for p in pools)


def windows_of(module: nn.Module) -> set[int | None]:
    """How far back the parts of a model look, each in positions, itself included; None: all the way."""
    return {part.window for part in module.modules() if hasattr(part, "window")}  # type: ignore[misc]


def most_pages(window: int, rows: int, size: int) -> int:
    """How many pages of `size` a text holds at most under a reach, when `rows` are stored at once, wherever their edges fall."""
    return (window - 1 + rows + size - 2) // size + 1
