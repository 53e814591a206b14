"""A simulation of texts on pages. The row of a token is a hash of all tokens up to it, so that any wrong page shows where it is read.

Rows hold a number made of the key and of all tokens up to their own. A plain model, lists of tokens, says beside the pages which rows
every read must return, how many pages are needed and how many could be freed. Free pages hold POISON.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.step import Step
from pellucid.engine.memory import most_pages
from pellucid.engine.prefix_cache import PrefixCache
from pellucid.errors import UseError

POISON = -1
WORDS, KEYS = 2, 2  # few of each, so that texts share much
CHUNK, LOOKS = 7, 10
Choose = Callable[[int], int]  # a number below its argument


class Part(nn.Module):
    """A part that only stores: a layer without anything to compute."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window


@dataclass
class Text:
    key: Hashable
    tokens: list[int]
    stored: int = 0


def history(key: Hashable, tokens: list[int]) -> list[int]:
    """Return the number that is stored for each token."""
    h, out = 7 + int(str(key)), []
    for t in tokens:
        h = (h * 1_000_003 + t + 1) % (2**61 - 1)
        out.append(h)
    return out


class OneBit(tuple[int, ...]):
    """Tokens whose hash is 0 or 1."""

    def __hash__(self) -> int:
        return sum(self) & 1


@dataclass(frozen=True)
class Shape:
    """The number of pages, their size, and the longest text."""

    count: int = 9
    size: int = 2
    counts: tuple[tuple[int, int], ...] = ()  # (reach, pages)
    longest: int = 18


SHAPES = (
    Shape(), Shape(6, 1, (), 6), Shape(12, 3, (), 36), Shape(9, 2, ((3, 9),), 18), Shape(10, 2, ((1, 5), (5, 8)), 20),
    Shape(0, 2, ((4, 9),), 40), Shape(12, 1, ((2, 10),), 12), Shape(5, 4, ((6, 8),), 20), Shape(0, 3, ((2, 6), (9, 8)), 30),
)  # fmt: skip


class World:
    """Texts that begin, grow, fork, are kept for others and end. `act` does one of these; `choose` makes every choice."""

    def __init__(self, shape: Shape, choose: Choose) -> None:
        self.shape, self.choose = shape, choose
        self.pages = PagedCache(shape.count, shape.size, dict(shape.counts), shape.longest)
        self.cache = PrefixCache(self.pages)
        self.parts = [Part(window) for window in (*self.pages.allocators, *[99] * (shape.count > 0))]  # 99: no allocator
        self.texts: dict[int, Text] = {}
        self.ended: list[Text] = []  # texts of before, to come again
        self.names = self.lookups = self.hit_pages = self.refused = 0
        self.kinds = (self.begin, self.begin, self.write, self.write, self.write, self.fork, self.keep, self.keep, self.end, self.look_up,
                      self.forget)  # fmt: skip

    def act(self) -> None:
        self.kinds[self.choose(len(self.kinds))]()

    def some(self) -> int | None:
        return list(self.texts)[self.choose(len(self.texts))] if self.texts else None

    def begin(self) -> None:
        """Start a text with the cached pages of its beginning."""
        text, self.names = self.random_text(), self.names + 1
        before = self.cache.looked, self.cache.hits
        text.stored = self.cache.start(self.names, text.key, text.tokens)
        self.lookups, self.hit_pages = self.lookups + 1, self.hit_pages + text.stored // self.shape.size
        assert (self.cache.looked - before[0], self.cache.hits - before[1]) == (len(text.tokens), text.stored)
        assert text.stored < len(text.tokens) and text.stored % self.shape.size == 0
        self.texts[self.names] = text
        self.same(self.names)

    def random_text(self) -> Text:
        """Return a random text, often with the beginning of an earlier one."""
        old = self.ended[-8:] + list(self.texts.values())
        like = old[self.choose(len(old))] if old and self.choose(4) else Text(self.choose(KEYS), [])
        tokens = like.tokens[: self.choose(len(like.tokens) + 1)] if self.choose(3) else list(like.tokens)
        tokens += [self.choose(WORDS) for _ in range(self.choose(4) or not tokens)]
        return Text(like.key if self.choose(4) else self.choose(KEYS), tokens[: self.pages.longest])

    def write(self) -> None:
        """Run a step with a chunk of one, two or three texts that fit."""
        chunks: dict[int, int] = {}
        for _ in range(1 + self.choose(3)):
            name = self.some()
            if name is None or name in chunks:
                continue
            text, rows = self.texts[name], 1 + self.choose(CHUNK)
            rows = min(rows, len(text.tokens) - text.stored) or 1
            if self.can_grow(name, text.stored + rows):
                chunks[name] = rows
                self.pages.reserve(name, text.stored + rows)
            elif self.choose(3) and (other := self.some()) not in chunks:
                self.end(other)
        if chunks:
            self.step(chunks)

    def can_grow(self, name: int, tokens: int) -> bool:
        """True if the text can grow to `tokens`. Checks that the plain model agrees, and that no more pages than needed are evicted."""
        needs, fitted, before = self.needs(name, tokens), self.pages.fits(name, tokens), self.state()
        could = tokens <= self.shape.longest and all(n <= g.count - len(set().union(*g.allocated.values())) for g, n in needs)
        least, evicted = [max(n, len(g.free)) for g, n in needs], self.cache.evictions
        assert fitted == (could and least == [len(g.free) for g, _ in needs])
        assert self.cache.can_grow(name, tokens) == could
        if could:
            assert self.pages.fits(name, tokens) and fitted == (self.cache.evictions == evicted)
            assert all(len(g.free) == n or g.window is not None for (g, _), n in zip(needs, least, strict=True))
            return True
        self.refused += 1
        try:
            self.pages.reserve(name, tokens)
        except UseError:
            assert self.state() == before
            return False
        raise AssertionError("pages that are not there")

    def needs(self, name: int, tokens: int) -> list[tuple[PageAllocator, int]]:
        """Return the number of pages of each allocator that the text lacks to grow to `tokens`: new ones, and copies of shared ones."""
        size, lacks = self.shape.size, []
        for allocator in self.pages.allocators.values():
            own, first = allocator.allocated[name], allocator.first[name]
            others = allocator.cached.union(*(pages for other, pages in allocator.allocated.items() if other != name))
            written = [own[i - first] for i in range(self.texts[name].stored // size, first + len(own)) if i * size < tokens]
            lacks.append((allocator, sum(page in others for page in written) + max(0, -(-tokens // size) - first - len(own))))
        return lacks

    def state(self) -> object:
        return [(list(g.free), list(g.references), {k: list(v) for k, v in g.allocated.items()}) for g in self.pages.allocators.values()]

    def step(self, chunks: dict[int, int]) -> None:
        """Run one forward: every part stores its rows, and the rows that it reads back must be those of the text."""
        for name, rows in chunks.items():
            text = self.texts[name]
            text.tokens += [self.choose(WORDS) for _ in range(text.stored + rows - len(text.tokens))]
        step = Step.paged(self.pages, chunks)
        histories = {name: history(self.texts[name].key, self.texts[name].tokens) for name in chunks}
        rows = torch.tensor([h for s in step.spans for h in histories[s.request][s.before : s.end]])[None, :, None]
        for part in self.parts:
            for s, segment in zip(step.spans, step.store(part, rows, rows * 2).segments, strict=True):
                self.meets(part, s.before, s.end, histories[s.request], segment.k_at[0], *(r[0, :, 0] for r in segment.read()))
                if segment.paged is None or self.choose(4):
                    continue
                met = [(at[0], *(b[:, 0] for b in block)) for block, at in segment.paged.blocks()]
                self.meets(part, s.before, s.end, histories[s.request], *map(torch.cat, zip(*met, strict=True)))
        before = {name: {r: len(g.allocated[name]) for r, g in self.pages.allocators.items()} for name in chunks}
        step.advance()
        for name, n in chunks.items():
            self.texts[name].stored += n
            for window, allocator in self.pages.allocators.items():
                if window is not None:
                    assert before[name][window] <= most_pages(window, n, self.shape.size)
                    assert len(allocator.allocated[name]) <= most_pages(window, 0, self.shape.size) or window == 1

    def meets(self, part: Part, before: int, end: int, expected: list[int], at: Tensor, keys: Tensor, values: Tensor) -> None:
        """Check the rows read for a chunk: their positions, without a gap from the first visible to the last, and their values."""
        window = part.window if part.window in self.pages.allocators else None
        first = int(at[0])
        assert at.tolist() == list(range(first, end)) and first <= (0 if window is None else max(0, before - window + 1))
        assert keys.tolist() == expected[first:end] and values.tolist() == [2 * h for h in expected[first:end]]

    def fork(self) -> None:
        if (name := self.some()) is not None:
            self.names += 1
            text = self.texts[name]
            tokens = list(text.tokens) if self.choose(2) else text.tokens[: text.stored]
            self.texts[self.names] = Text(text.key, tokens, text.stored)
            self.pages.fork(name, self.names)
            self.same(self.names)

    def keep(self) -> None:
        """Keep a text. A look-up hits all its full pages at once."""
        if (name := self.some()) is None:
            return
        text, size = self.texts[name], self.shape.size
        self.cache.keep(name, text.key, text.tokens)
        before = self.state()
        self.cache.keep(name, text.key, text.tokens)
        assert self.state() == before
        full_pages = text.stored // size
        assert len(self.cache.find(text.key, [*text.tokens[: text.stored], 0])) == full_pages

    def end(self, name: int | None = None) -> None:
        """Release a text, twice. Its tokens may come again."""
        if (name := name or self.some()) is not None:
            if self.choose(2):
                self.cache.keep(name, self.texts[name].key, self.texts[name].tokens)
            self.pages.release(name)
            self.pages.release(name)
            self.ended = [*self.ended[-8:], self.texts.pop(name)]

    def look_up(self) -> None:
        """Look up random texts. Every page that is hit stores just their tokens, after just these, under their key."""
        size, last = self.shape.size, dict[int | None, list[int]]()
        for part, (keys, _) in self.pages.pools.items():
            last[part.window if part.window in self.pages.allocators else None] = keys.flatten().tolist()  # type: ignore[index]
        for _ in range(LOOKS):
            text = self.random_text()
            path, expected = self.cache.find(text.key, text.tokens), history(text.key, text.tokens)
            self.lookups, self.hit_pages = self.lookups + 1, self.hit_pages + len(path)
            for i, node in enumerate(path, 1):
                assert all(last[window][(page + 1) * size - 1] == expected[i * size - 1] for window, page in node.pages.items())

    def forget(self) -> None:
        if not self.choose(8):
            self.cache.forget(*([self.choose(KEYS)] if self.choose(2) else []))

    def same(self, name: int) -> None:
        """Check that every row that a text still has is its own."""
        text = self.texts[name]
        expected = history(text.key, text.tokens[: text.stored])
        assert self.pages.length[name] == text.stored
        for part, (keys, values) in self.pages.pools.items():
            allocator = self.pages.of(part)
            first, size = allocator.first[name] * allocator.size, allocator.size
            at = [page * size + i for page in allocator.allocated[name] for i in range(size)][: max(0, text.stored - first)]
            key, value = keys.flatten().tolist(), values.flatten().tolist()
            assert [key[i] for i in at] == expected[first:] and [value[i] for i in at] == [2 * h for h in expected[first:]]

    def check(self) -> None:
        """Check every text and every page; then poison the free pages."""
        for name in self.texts:
            self.same(name)
        assert self.cache.sound()
        for part, pools in self.pages.pools.items():
            for pool in pools:
                pool.unflatten(0, (-1, self.shape.size))[self.pages.of(part).free] = POISON

    def close(self) -> None:
        """Release all texts, and check that no page is left."""
        for name in self.texts:
            self.pages.release(name)
        self.cache.forget()
        assert self.cache.sound() and self.pages.free_pages == self.pages.count and not self.cache.top.children
        assert not self.pages.length and not any(g.tables or g.first or g.cached or g.idle for g in self.pages.allocators.values())
