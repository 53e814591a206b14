"""The prefix cache: pages of earlier texts, for later texts with the same beginning.

    (model, settings)  -  "The capital of "  -  "France is Paris."        a node is one page, found by its exact tokens
                                             -  "Italy is Rome. "

A radix tree: every edge is one page of tokens, and each key (all that stored rows depend on besides tokens) has its own root. A page that
no request holds is evicted when its memory is needed, the least recently used first. Using a page also uses all pages before it, a moment
later, so that ends are evicted before beginnings.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice, takewhile

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.page_allocator import PageAllocator

Window = int | None


def edge(tokens: Sequence[int]) -> Hashable:
    """Return the key of a page among those after the same beginning: its tokens, compared one by one."""
    return tuple(tokens)


class Node:
    """One page of a text, and the pages after it. pages: its number in each allocator that still has it, by window."""

    __slots__ = ("above", "children", "edge", "pages")

    def __init__(self, above: "Node | None" = None, edge: Hashable = None) -> None:
        self.above, self.edge = above, edge
        self.children: dict[Hashable, Node] = {}
        self.pages: dict[Window, int] = {}


class PrefixCache:
    """The tree over a PagedCache. Counters: `looked` tokens looked up, `hits` of them found, `evictions` of pages."""

    def __init__(self, pages: PagedCache) -> None:
        self.pages, self.top = pages, Node()
        # nodes that hold a page, least recently used first
        self.recent = {window: OrderedDict[Node, None]() for window in pages.allocators}
        self.looked = self.hits = self.evictions = 0

    def start(self, request: object, key: Hashable, tokens: Sequence[int]) -> int:
        """Begin the request on the longest stored beginning. Returns its length: full pages, with at least one token left to compute."""
        path = self.find(key, tokens)
        n = len(path) * self.pages.size
        self.looked, self.hits = self.looked + len(tokens), self.hits + n
        pages = {w: [node.pages[w] for node in path[a.oldest(n) :]] for w, a in self.pages.allocators.items()}
        self.pages.begin(request, pages, n)
        self.use(path, n)
        return n

    def find(self, key: Hashable, tokens: Sequence[int]) -> list[Node]:
        """Return the longest path along these tokens after which every allocator has all keys that the next query sees."""
        size, allocators = self.pages.size, self.pages.allocators
        node, path, best, unbroken = self.top.children.get(key), list[Node](), 0, dict.fromkeys(allocators, 0)
        for i in range((len(tokens) - 1) // size):
            node = node and node.children.get(edge(tokens[i * size : (i + 1) * size]))
            if node is None:
                break
            path.append(node)
            unbroken = {w: n + 1 if w in node.pages else 0 for w, n in unbroken.items()}
            if all(unbroken[w] >= i + 1 - a.oldest((i + 1) * size) for w, a in allocators.items()):
                best = i + 1
        return path[:best]

    def keep(self, request: object, key: Hashable, tokens: Sequence[int]) -> None:
        """Add the request's full pages of these tokens. If the tree has an equal page, the request uses that one."""
        size, length = self.pages.size, self.pages.length[request]
        path, node = list[Node](), self.top
        for name in (key, *(edge(tokens[i : i + size]) for i in range(0, min(len(tokens), length) // size * size, size))):
            node = node.children.setdefault(name, Node(node, name))
            path.append(node)
        for i, node in enumerate(path[1:]):
            for window, allocator in self.pages.allocators.items():
                self.share(node, allocator, request, i, allocator.page(request, i), self.recent[window])
        self.use(path[1:], length)
        self.prune(node)

    def share(
        self, node: Node, allocator: PageAllocator, request: object, i: int, own: int | None, recent: OrderedDict[Node, None]
    ) -> None:
        """Add one page of the request to the node of its tokens, or point the request to the node's page."""
        kept = node.pages.get(allocator.window)
        if own is None or own == kept:
            return
        if kept is not None:
            allocator.put(request, i, kept)
        else:
            allocator.hold(own)
            node.pages[allocator.window] = own
            recent[node] = None

    def use(self, path: Sequence[Node], length: int) -> None:
        """Mark the pages of a path that a query at `length` sees as recently used, the first ones last."""
        for window, recent in self.recent.items():
            for node in reversed(path[self.pages.allocators[window].oldest(length) :]):
                if node in recent:
                    recent.move_to_end(node)

    def can_grow(self, request: object, tokens: int) -> bool:
        """True if the request can grow to `tokens`. Evicts unreferenced cache pages if that makes it fit."""
        lack = [(allocator, len(shared) + new) for allocator, shared, new in self.pages.missing(request, tokens)]
        if tokens > self.pages.longest or any(n > len(allocator.free) + allocator.idle for allocator, n in lack):
            return False
        for allocator, n in lack:
            while len(allocator.free) < n:
                self.evict(allocator)
        return True

    def evict(self, allocator: PageAllocator) -> None:
        """Free one page of a allocator that only the tree holds."""
        recent = self.recent[allocator.window]
        passed = list(takewhile(lambda n: allocator.references[n.pages[allocator.window]] > 1, recent))
        node = next(islice(recent, len(passed), None))
        for in_use in passed:  # by requests
            for n in above(in_use) if allocator.window is None else [in_use]:
                recent.move_to_end(n)
        if allocator.window is None:
            self.evictions += self.cut(node)
        else:
            self.evictions += self.lose(node, [allocator.window])
            self.prune(node)

    def forget(self, *keys: Hashable) -> None:
        """Drop all pages under these keys; without keys, all pages."""
        for key in keys or list(self.top.children):
            if key in self.top.children:
                self.cut(self.top.children[key])

    def clear(self) -> None:
        """Replace the tree by an empty one, in any state. The PagedCache clears the pages."""
        self.top = Node()
        for recent in self.recent.values():
            recent.clear()

    def cut(self, node: Node) -> int:
        """Remove a node and all after it. Returns the number of released pages."""
        lost = sum(self.lose(n, list(n.pages)) for n in below(node))
        node.children.clear()
        self.prune(node)
        return lost

    def lose(self, node: Node, windows: Iterable[Window]) -> int:
        """Release a node's pages in these windows. Returns their number."""
        lost = [(self.pages.allocators[window], node.pages.pop(window)) for window in windows]
        for allocator, page in lost:
            allocator.release_hold(page)
            del self.recent[allocator.window][node]
        return len(lost)

    def prune(self, node: Node) -> None:
        """Remove a node without pages and without successors, then its predecessor if that has none either."""
        while node.above is not None and not node.pages and not node.children:
            del node.above.children[node.edge]
            node = node.above

    def sound(self) -> bool:
        """True if tree, pages and tables agree, and ends come before beginnings in the order of eviction."""
        nodes = [n for n in below(self.top) if n.pages]
        kept = {window: [n.pages[window] for n in nodes if window in n.pages] for window in self.pages.allocators}
        order = {node: i for i, node in enumerate(self.recent.get(None, ()))}
        return (
            self.pages.sound(kept)
            and all(set(recent) == {n for n in nodes if window in n.pages} for window, recent in self.recent.items())
            and all(order[n] < order[n.above] for n in order if n.above in order)
            and all(n.children or n.pages for n in below(self.top) if n.above is not None)
        )


def below(node: Node) -> Iterator[Node]:
    """Yield a node and all after it."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += node.children.values()


def above(node: Node) -> Iterator[Node]:
    """Yield a node and those before it, up to the first without pages."""
    while node.above is not None and node.pages:
        yield node
        node = node.above
