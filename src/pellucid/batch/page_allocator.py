"""The numbers of pages: which are free, whose the others are, and the tables in which each text's lie in order."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


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

    def fill(self, rows: np.ndarray, request: object) -> None:
        """Write a request's table to rows [... pages]. Entries of pages that it has freed, or has not yet, stay what they are."""
        first, pages = self.first[request], self.allocated[request]
        rows[..., first : first + len(pages)] = pages

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
