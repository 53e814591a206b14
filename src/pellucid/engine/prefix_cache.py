"""The prefix cache: pages of texts that were read before, for texts that begin alike.

    (model, settings)  -  "The capital of "  -  "France is Paris."        a node is one page, found by its exact tokens
                                             -  "Italy is Rome. "

A radix tree whose every edge is one page of tokens, with a root for each key: all else that what is stored depends on. What nobody else
holds goes when its place is needed, the longest unused first. Who uses a page uses all before it, just after: so ends go before beginnings.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice, takewhile

from pellucid.batch.kv_cache import PagedCache, PagePool

Window = int | None


def edge(tokens: Sequence[int]) -> Hashable:
    """What tells a page from others after the same beginning: its tokens, compared one by one."""
    return tuple(tokens)


class Node:
    """One page of a text, and what comes after it. pages: its number in each group, by window, where it is held."""

    __slots__ = ("above", "children", "edge", "pages")

    def __init__(self, above: "Node | None" = None, edge: Hashable = None) -> None:
        self.above, self.edge = above, edge
        self.children: dict[Hashable, Node] = {}
        self.pages: dict[Window, int] = {}


class PrefixCache:
    """The tree over some Pages. Counted: `looked` tokens asked for, `hits` tokens of them found, `evictions` of pages."""

    def __init__(self, pages: PagedCache) -> None:
        self.pages, self.top = pages, Node()
        self.recent = {window: OrderedDict[Node, None]() for window in pages.groups}  # who holds a page, the longest unused first
        self.looked = self.hits = self.evictions = 0

    def start(self, request: object, key: Hashable, tokens: Sequence[int]) -> int:
        """Open the request on the longest beginning that is stored, and tell its length: whole pages, and one token is left to compute."""
        path = self.find(key, tokens)
        n = len(path) * self.pages.size
        self.looked, self.hits = self.looked + len(tokens), self.hits + n
        self.pages.begin(request, {r: [node.pages[r] for node in path[g.oldest(n) :]] for r, g in self.pages.groups.items()}, n)
        self.use(path, n)
        return n

    def find(self, key: Hashable, tokens: Sequence[int]) -> list[Node]:
        """The longest path along these tokens after which every group holds all that the next query sees."""
        size, groups = self.pages.size, self.pages.groups.items()
        node, path, best, unbroken = self.top.children.get(key), list[Node](), 0, dict.fromkeys(self.pages.groups, 0)
        for i in range((len(tokens) - 1) // size):
            node = node and node.children.get(edge(tokens[i * size : (i + 1) * size]))
            if node is None:
                break
            path.append(node)
            unbroken = {r: n + 1 if r in node.pages else 0 for r, n in unbroken.items()}
            if all(unbroken[r] >= i + 1 - g.oldest((i + 1) * size) for r, g in groups):
                best = i + 1
        return path[:best]

    def keep(self, request: object, key: Hashable, tokens: Sequence[int]) -> None:
        """What the request has stored of these tokens, whole pages, is for others too. Of two equal ones the tree's stays, for both."""
        size, length = self.pages.size, self.pages.length[request]
        path, node = list[Node](), self.top
        for name in (key, *(edge(tokens[i : i + size]) for i in range(0, min(len(tokens), length) // size * size, size))):
            node = node.children.setdefault(name, Node(node, name))
            path.append(node)
        for i, node in enumerate(path[1:]):
            for window, group in self.pages.groups.items():
                self.share(node, group, request, i, group.page(request, i), self.recent[window])
        self.use(path[1:], length)
        self.prune(node)

    def share(self, node: Node, group: PagePool, request: object, i: int, own: int | None, recent: OrderedDict[Node, None]) -> None:
        """One page of the request and the node of its tokens: hold it there, or point the request to the one that is there."""
        kept = node.pages.get(group.window)
        if own is None or own == kept:
            return
        if kept is not None:
            group.put(request, i, kept)
        else:
            group.keep(own)
            node.pages[group.window] = own
            recent[node] = None

    def use(self, path: Sequence[Node], length: int) -> None:
        """Note that the query at this position has a use for the pages of a path, the first ones last."""
        for window, recent in self.recent.items():
            for node in reversed(path[self.pages.groups[window].oldest(length) :]):
                if node in recent:
                    recent.move_to_end(node)

    def can_grow(self, request: object, tokens: int) -> bool:
        """Whether the request can have pages for so many tokens; what nobody else holds goes for it, if that is enough."""
        lack = [(group, len(shared) + new) for group, shared, new in self.pages.missing(request, tokens)]
        if tokens > self.pages.longest or any(n > len(group.free) + group.idle for group, n in lack):
            return False
        for group, n in lack:
            while len(group.free) < n:
                self.evict(group)
        return True

    def evict(self, group: PagePool) -> None:
        """Free one page of a group that only the tree holds."""
        recent = self.recent[group.window]
        passed = list(takewhile(lambda n: group.references[n.pages[group.window]] > 1, recent))
        node = next(islice(recent, len(passed), None))
        for held in passed:  # by requests, which are using them
            for n in above(held) if group.window is None else [held]:
                recent.move_to_end(n)
        if group.window is None:
            self.evictions += self.cut(node)
        else:
            self.evictions += self.lose(node, [group.window])
            self.prune(node)

    def forget(self, *keys: Hashable) -> None:
        """Drop all that is stored under these keys; without any, everything."""
        for key in keys or list(self.top.children):
            if key in self.top.children:
                self.cut(self.top.children[key])

    def clear(self) -> None:
        """Begin anew with an empty tree, whatever state this one is in; the pages are cleared by their owner."""
        self.top = Node()
        for recent in self.recent.values():
            recent.clear()

    def cut(self, node: Node) -> int:
        """A node and all after it go; how many pages the tree let go."""
        lost = sum(self.lose(n, list(n.pages)) for n in below(node))
        node.children.clear()
        self.prune(node)
        return lost

    def lose(self, node: Node, windows: Iterable[Window]) -> int:
        """Let go of pages of a node; how many."""
        lost = [(self.pages.groups[window], node.pages.pop(window)) for window in windows]
        for group, page in lost:
            group.drop(page)
            del self.recent[group.window][node]
        return len(lost)

    def prune(self, node: Node) -> None:
        """A node without pages, after which nothing comes, is of no use; nor then, perhaps, the one before it."""
        while node.above is not None and not node.pages and not node.children:
            del node.above.children[node.edge]
            node = node.above

    def sound(self) -> bool:
        """Whether tree, pages and tables agree, and ends are before beginnings in the order in which they go."""
        nodes = [n for n in below(self.top) if n.pages]
        kept = {window: [n.pages[window] for n in nodes if window in n.pages] for window in self.pages.groups}
        order = {node: i for i, node in enumerate(self.recent.get(None, ()))}
        return (
            self.pages.sound(kept)
            and all(set(recent) == {n for n in nodes if window in n.pages} for window, recent in self.recent.items())
            and all(order[n] < order[n.above] for n in order if n.above in order)
            and all(n.children or n.pages for n in below(self.top) if n.above is not None)
        )


def below(node: Node) -> Iterator[Node]:
    """A node and all after it."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += node.children.values()


def above(node: Node) -> Iterator[Node]:
    """A node and those before it, as far as they hold pages."""
    while node.above is not None and node.pages:
        yield node
        node = node.above
