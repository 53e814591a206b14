"""References, copies before writes, windows that give pages back, and the prefix cache over pages, against a plain model of texts."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from covering import FULL
from paged_texts import SHAPES, OneBit, World
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.page_allocator import PageAllocator
from pellucid.engine import prefix_cache
from pellucid.engine.prefix_cache import PrefixCache
from tiny import swapped


class Texts(RuleBasedStateMachine):
    """The operations of a World, in any order."""

    @initialize(shape=st.sampled_from(SHAPES), bits=st.booleans())
    def made(self, shape: Any, bits: bool) -> None:
        self.world = World(shape, lambda n: 0)
        self.edge = prefix_cache.edge
        prefix_cache.edge = OneBit if bits else self.edge  # type: ignore[assignment]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            prefix_cache.edge = self.edge

    @invariant()
    def checked(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def do(self, name: str, data: st.DataObject) -> None:
        self.world.choose = lambda n: data.draw(st.integers(0, n - 1))
        getattr(self.world, name)()


for kind in ("begin", "write", "fork", "keep", "end", "look_up", "forget"):
    setattr(Texts, kind, rule(data=st.data())(lambda self, data, kind=kind: self.do(kind, data)))  # type: ignore[misc]


def test_texts_on_pages() -> None:
    how = settings(max_examples=40 if FULL else 15, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Texts, settings=how)  # type: ignore[no-untyped-call]


def played(seed: int, acts: int = 80) -> World:
    """Return a world after a seed's operations."""
    draw = random.Random(seed)
    world = World(SHAPES[seed % len(SHAPES)], draw.randrange)
    for i in range(acts):
        world.act()
        if i % 4 == 0:
            world.check()
    world.check()
    return world


def total(seeds: range, count: Callable[[World], int]) -> int:
    times = 0
    for seed in seeds:
        world = played(seed)
        times += count(world)
        world.close()
    return times


@pytest.mark.parametrize("bits", [64, 1])
def test_seeds(bits: int) -> None:
    """The cache hits with full hashes and with one-bit hashes, where tokens decide."""
    with swapped(prefix_cache, "edge", OneBit if bits == 1 else prefix_cache.edge):
        assert total(range(36), lambda w: w.hit_pages) > 100


def test_seeds_do_all_there_is() -> None:
    assert total(range(18), lambda w: w.cache.evictions) > 20
    assert total(range(18), lambda w: w.refused) > 20


def test_seeds_replay() -> None:
    for seed in (3, 4):
        a, b = played(seed), played(seed)
        assert a.state() == b.state() and a.texts == b.texts and a.cache.hits == b.cache.hits


def freed_early(self: PageAllocator, page: int) -> None:
    """Free a page as soon as one request releases it."""
    self.references[page] -= 1
    self.idle += self.references[page] == 1 and page in self.cached
    self.free.append(page)


def not_counted(self: PageAllocator, request: object, pages: Any, tokens: int) -> None:
    """Open a table of shared pages without its length."""
    opened(self, request, pages, tokens)
    for page in pages:
        self.references[page] -= 1


def never_freed(self: PageAllocator, request: object, length: int) -> None:
    gone = max(0, self.oldest(length // self.size * self.size) - self.first[request])
    buffers = self.allocated[request]
    del buffers[:gone]
    self.first[request] += gone


def in_use(self: PrefixCache, allocator: PageAllocator) -> None:
    """Evict the least recently used page, even if a request holds it."""
    node = next(iter(self.recent[allocator.window]))
    page = node.pages[allocator.window]
    self.cut(node)
    if allocator.references[page]:
        allocator.references[page] = 0
        allocator.free.append(page)


def beginnings(self: PrefixCache, allocator: PageAllocator) -> None:
    """Evict prefixes first, which loses what follows them."""
    recent = self.recent[allocator.window]
    self.evictions += self.cut(next(n for n in reversed(recent) if allocator.references[n.pages[allocator.window]] == 1))


def any_key(self: PrefixCache, key: Any, tokens: Any) -> list[Any]:
    return max((find(self, k, tokens) for k in (key, *self.top.children)), key=len)


def to_the_end(self: PrefixCache, key: Any, tokens: Any) -> list[Any]:
    """Find the whole text, so that no token is left to compute."""
    return find(self, key, [*tokens, 0])


def past_windows(self: PrefixCache, key: Any, tokens: Any) -> list[Any]:
    """Find the longest text, whatever its windows have given back."""
    path, size = find(self, key, tokens), self.pages.size
    node = path[-1] if path else self.top.children.get(key)
    for i in range(len(path), (len(tokens) - 1) // size):
        node = node and node.children.get(tuple(tokens[i * size : (i + 1) * size]))
        if node is None:
            break
        path.append(node)
    return path


def not_stored_yet(self: PrefixCache, request: Any, key: Any, tokens: Any) -> None:
    """Keep pages that are reserved but not filled."""
    n, self.pages.length[request] = self.pages.length[request], sum(map(len, self.pages.allocators[None].allocated.values()))
    self.pages.length[request] = min(len(self.pages.allocators[None].allocated[request]) * self.pages.size, len(tokens))
    kept(self, request, key, tokens)
    self.pages.length[request] = n


opened, oldest, find, kept, missing = PageAllocator.open, PageAllocator.oldest, PrefixCache.find, PrefixCache.keep, PageAllocator.missing
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "no copy before a write": (PageAllocator, "missing", lambda self, r, n, tokens: ([], missing(self, r, n, tokens)[1])),
    "a copy of nothing": (PagedCache, "copy", lambda self, g, r, buffers: [g.put(r, i, g.free.pop()) for i in buffers]),
    "a copy that the table does not hold": (PagedCache, "copy", lambda self, allocator, request, buffers: None),
    "freed early": (PageAllocator, "drop_reference", freed_early),
    "not counted": (PageAllocator, "open", not_counted),
    "never freed": (PageAllocator, "free_outgrown", never_freed),
    "given back too early": (PageAllocator, "oldest", lambda self, n: oldest(self, n + 2)),
    "given back too late": (PageAllocator, "free_outgrown", lambda self, request, length: None),
    "found by its hash": (prefix_cache, "edge", lambda tokens: hash(OneBit(tokens))),
    "another key": (PrefixCache, "find", any_key),
    "nothing left to compute": (PrefixCache, "find", to_the_end),
    "windows that are gone": (PrefixCache, "find", past_windows),
    "kept before it is stored": (PrefixCache, "keep", not_stored_yet),
    "evicted in use": (PrefixCache, "evict", in_use),
    "beginnings first": (PrefixCache, "evict", beginnings),
    "no use is noted": (PrefixCache, "use", lambda self, path, length: None),
    "a tree that grows": (PrefixCache, "prune", lambda self, node: None),
    "nothing is forgotten": (PrefixCache, "forget", lambda self, *keys: None),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(mutant: str) -> None:
    """Some seed of 36 sees each mutant, by an assertion or a failure."""
    with swapped(*MUTANTS[mutant]), pytest.raises((AssertionError, IndexError, KeyError, StopIteration)):
        total(range(36), lambda w: 0)
