"""Models over shared pages, with and without the prefix cache, under windows that give pages back, with NaN in every free page."""

import random
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import FULL
from kinds import KINDS
from pellucid.batch.kv_cache import Paged, PagedCache
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.step import Step
from pellucid.config import Config
from pellucid.counting import Setting, counted
from pellucid.engine.memory import most_pages, windows_of
from pellucid.engine.prefix_cache import PrefixCache, below
from pellucid.errors import UseError
from pellucid.families import understand
from tiny import DECODERS, V, far, ids, serve, swapped, tiny

FAR = {"mistral": {6}, "gemma3_text": {8, None}, "llama4_text": {9, None}, "gpt_oss": {8, None}}
WINDOWED = {f: understand(KINDS[f].tiny | {"model_type": f}, "config.json")[1] for f in FAR}
OTHERS = {f: understand(KINDS[f].tiny | {"model_type": f}, "config.json")[1] for f in ("lfm2", "qwen3_5_text")}  # no attention, in part
MODELS: dict[str, Config] = {**DECODERS, **{f"{f}, read": cfg for f, cfg in WINDOWED.items()}, **OTHERS}


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def pages_of(model: nn.Module, size: int, longest: int, texts: int = 1, chunk: int = 1) -> PagedCache:
    """Return the most pages that these texts need in chunks of `chunk`."""
    far_back = windows_of(model)
    counts = {n: texts * most_pages(n, chunk, size) for n in far_back if n is not None}
    return PagedCache(texts * -(-longest // size) if None in far_back else 0, size, counts, longest)


def poison(pages: PagedCache) -> None:
    """Fill every free page with NaN and shuffle their order."""
    for allocator in pages.allocators.values():
        random.Random(str(allocator.free)).shuffle(allocator.free)
    for part, pool in pages.stores():
        pool.unflatten(0, (pages.of(part).count, -1))[pages.of(part).free] = float("nan")


@pytest.mark.parametrize("family", WINDOWED)
def test_how_far_back(family: str) -> None:
    assert windows_of(tiny(WINDOWED[family])) == FAR[family]


def test_the_others_look_back_all_the_way() -> None:
    assert all(windows_of(tiny(f)) == {None} for f in ("llama", "deepseek_v3", "t5"))


@cache
def counted_bytes(family: str, context: int) -> int:
    """Return the bytes that `pellucid count` gives for a cache in float64."""
    return 2 * int(counted(WINDOWED[family], family, family, Setting(context=context, cache="float32"))["cache.bytes"])


def grown(family: str, size: int, lengths: Sequence[int] = (5, 23)) -> tuple[float, list[int]]:
    """Read one text token by token; return the gap of its logits to the plain forward's, and the bytes beyond the count at some lengths."""
    model, text, over, out = tiny(WINDOWED[family]), ids(max(lengths)), [], []
    pages = pages_of(model, size, len(text), 2)
    for n in range(1, len(text) + 1):
        step = Step.paged(pages, {0: 1})
        out.append(model(text[None, n - 1 : n], step)[0])
        if n in lengths:
            over.append(pages.bytes_held(0) - counted_bytes(family, n))
        step.advance()
        poison(pages)
    assert pages.sound()
    return far(torch.cat(out), model(text[None])[0]), over


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.quick(2)
def test_windows_stop_growing(family: str) -> None:
    """The bytes of a stored token's step are those counted, up to a partly filled page."""
    assert grown(family, 1) == (pytest.approx(0, abs=1e-11), [0, 0])
    for size in (2, 5):
        gap, over = grown(family, size)
        row = 2 * tiny(WINDOWED[family]).layers[0].attn.k.weight.shape[0] * 8
        assert gap < 1e-11 and all(0 <= n <= 2 * (size - 1) * row * len(WINDOWED[family].layers) for n in over)


def early(self: PageAllocator, length: int) -> int:
    return 0 if self.window is None else max(0, length + 2 - self.window) // self.size


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (PageAllocator, "free_outgrown", lambda self, request, length: None),
        (PageAllocator, "oldest", early),
        (Paged, "blocks", lambda self: blocks(Paged(self.pools, self.table, self.size, self.end))),
        (PagedCache, "of", lambda self, part: next(iter(self.allocators.values()))),
    ],
)
@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.quick(4)
def test_windows_mutants(family: str, owner: Any, name: str, value: Any) -> None:
    """Mutants: pages that are never freed, freed too early or read afterwards, and one allocator for all layers."""
    if name == "of" and len(FAR[family]) == 1:
        return
    with swapped(owner, name, value):
        try:
            gap, over = grown(family, 1)
        except (UseError, AssertionError):
            return
    assert not gap < 1e-6 or any(over)


blocks = Paged.blocks


def test_what_others_were_given_is_not_read() -> None:
    """A deferred read of released pages works until another request has them, then fails."""
    pages, part, stored = PagedCache(4, 2), nn.Identity(), torch.arange(5.0)[None, :, None]
    step = Step.paged(pages, {"a": 5})
    (segment,) = step.store(part, stored).segments
    step.advance()
    pages.release("a")
    assert torch.equal(segment.read()[0], stored)
    pages.reserve("b", 1)
    with pytest.raises(UseError, match="request a had stored up to token 5"):
        segment.read()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_most_pages(size: int) -> None:
    """The number of pages is enough for every length, and some length needs it."""
    for window in (1, 2, 5, 8):
        for rows in (1, 2, 7):
            page_counts = [-(-(n + rows) // size) - max(0, n // size * size + 1 - window) // size for n in range(60)]
            assert max(page_counts) == most_pages(window, rows, size)


def read(model: nn.Module, cache: PrefixCache, name: object, tokens: Sequence[int], chunk: int, key: Hashable = 0, **inputs: Any) -> Tensor:
    """Return the logits of the rows that are not cached, and keep every chunk in the cache."""
    pages, out = cache.pages, list[Tensor]()
    cached = cache.start(name, key, tokens)
    for start in range(cached, len(tokens), chunk):
        rows = tokens[start : start + chunk]
        assert cache.can_grow(name, start + len(rows))
        step = Step.paged(pages, {name: len(rows)})
        out.append(model(torch.tensor([rows]), step, **inputs)[0])
        step.advance()
        cache.keep(name, key, tokens)
        poison(pages)
        assert cache.sound()
    return torch.cat(out)


def texts(seed: int, most: int) -> list[list[int]]:
    """Return texts that share a few prefixes, some of them several times."""
    draw = random.Random(seed)
    trunk, prefixes = [draw.randrange(V) for _ in range(most)], list[list[int]]()
    for _ in range(10):
        at = draw.randrange(most)
        prefixes.append(trunk[:at] + [draw.randrange(V) for _ in range(draw.randrange(1, most - at + 1))])
    return [*prefixes[:4], trunk, trunk, prefixes[5], trunk, *prefixes[4:], trunk[:8], trunk[:8]]


def cached(cfg: Config | str, size: int, chunk: int, many: int, most: int = 24) -> tuple[float, int]:
    """Return the largest difference of cached texts from each alone, and the number of tokens that were not read again."""
    model = tiny(cfg)
    cache, worst = PrefixCache(pages_of(model, size, most, many, chunk)), 0.0
    for name, text in enumerate(texts(size, most)):
        got = read(model, cache, name, text, chunk)
        worst = max(worst, far(got, model(torch.tensor([text]))[0, len(text) - len(got) :]))
        if name % 2:
            cache.pages.release(name - 1)
            cache.pages.release(name)
    assert cache.looked == sum(map(len, texts(size, most)))
    return worst, cache.hits


CUT = [(1, 5, 2), (3, 64, 2), (4, 4, 9), (8, 3, 3)]
GRID = [(family, *CUT[(n + k) % 4]) for n, family in enumerate(MODELS) for k in range(4 if FULL else 2)]


@pytest.mark.parametrize(("family", "size", "chunk", "many"), GRID)
@pytest.mark.quick(7)
def test_with_and_without_the_cache(family: str, size: int, chunk: int, many: int) -> None:
    """The logits of all computed rows are equal, in a pool that two texts fill and in larger ones."""
    worst, hits = cached(MODELS[family], size, chunk, many)
    assert worst < 1e-11 and hits > 5


def test_a_prompt_of_whole_pages_is_read_for_its_last_page_alone() -> None:
    model, text = tiny("llama"), ids(8).tolist()
    cache = PrefixCache(PagedCache(8, 4))
    first = read(model, cache, 0, text, 64)
    again = read(model, cache, 1, text, 64)
    assert len(first) == 8 and len(again) == 4 and cache.hits == 4
    assert far(again, first[4:]) < 1e-12


def test_the_source_is_part_of_the_key() -> None:
    """A decoder's stored rows serve requests of the same source only; the memory is computed anew each time."""
    model, text, sources = tiny("t5"), ids(9).tolist(), [ids(5, seed=1), ids(6, seed=2)]

    def gap(keys: Sequence[Hashable]) -> tuple[float, int]:
        cache, worst = PrefixCache(PagedCache(16, 2)), 0.0
        for name, (key, source) in enumerate(zip(keys, [*sources, sources[0]], strict=True)):
            cached, got = cache.start(name, key, text), list[Tensor]()
            for i, t in enumerate(text[cached:]):
                step = Step.paged(cache.pages, {name: 1})
                source_inputs = (source[None], Step.packed([len(source)], prompts={name: source.tolist()})) if i == 0 else (None, None)
                got.append(model(source_inputs[0], torch.tensor([[t]]), step, source_inputs[1])[0])
                step.advance()
            cache.keep(name, key, text)
            worst = max(worst, far(torch.cat(got), model(source[None], torch.tensor([text]))[0, cached:]))
        return worst, cache.hits

    assert gap([("a", 1), ("b", 2), ("a", 1)]) == (pytest.approx(0, abs=1e-11), 8)
    assert gap(["same"] * 3)[0] > 1e-3


def test_the_longest_unused_goes_first() -> None:
    pages = PagedCache(6, 2)
    cache = PrefixCache(pages)

    def stored(name: object, tokens: list[int]) -> None:
        cache.start(name, "", tokens)
        assert cache.can_grow(name, len(tokens))
        pages.reserve(name, len(tokens))
        pages.advance(name, len(tokens))
        cache.keep(name, "", tokens)
        pages.release(name)

    def there() -> list[int]:
        return [2 * len(cache.find("", [*t, 0])) for t in ([1, 1, 2, 2], [1, 1, 3, 3], [4, 4, 5, 5])]

    for tokens in ([1, 1, 2, 2], [1, 1, 3, 3], [4, 4, 5, 5]):
        stored(tokens[2], tokens)
    assert there() == [4, 4, 4] and pages.free_pages == 1
    stored("x", [6, 6, 7, 7])
    assert there() == [2, 4, 4] and cache.evictions == 1
    assert cache.start("y", "", [1, 1, 3, 3, 9]) == 4  # in use from here on
    stored("z", [8, 8, 8, 8])
    assert there() == [2, 4, 0] and cache.evictions == 3
    stored("w", [9, 9, 9, 9, 9, 9, 9, 9])
    assert there() == [2, 4, 0] and not cache.can_grow("v", 10) and cache.can_grow("v", 8)
    assert cache.sound()


def test_nothing_grows() -> None:
    """Over thousands of texts that come once, tables, tree and keys stay as large as the pages allow."""
    pages = PagedCache(8, 4, {6: 8}, 32)
    cache = PrefixCache(pages)
    for i in range(2000):
        tokens = [i, *range(10)]
        cache.start(i, i % 50, tokens)
        assert cache.can_grow(i, 11)
        pages.reserve(i, 11)
        pages.advance(i, 11)
        cache.keep(i, i % 50, tokens)
        pages.release(i)
        assert sum(1 for n in below(cache.top) if n.pages) <= 8 and len(cache.top.children) <= 4
    assert cache.sound() and not any((g.tables, g.allocated, g.first) != ({}, {}, {}) for g in pages.allocators.values())
    assert not pages.length and not pages.angle_length
    cache.forget("unknown")
    assert cache.top.children
    cache.forget()
    assert pages.free_pages == pages.count == 16 and not cache.top.children


def test_forgetting_a_key() -> None:
    pages = PagedCache(8, 2)
    cache = PrefixCache(pages)
    for key in ("a", "b"):
        cache.start(key, key, [1, 2, 3])
        pages.reserve(key, 3)
        pages.advance(key, 3)
        cache.keep(key, key, [1, 2, 3])
    cache.forget("a")
    assert cache.start("c", "a", [1, 2, 3]) == 0 and cache.start("d", "b", [1, 2, 3]) == 2
    assert cache.sound()


# Pages alone


def test_releasing_twice_is_releasing() -> None:
    pages = PagedCache(4, 2)
    pages.reserve("a", 3)
    for _ in range(2):
        pages.release("a")
        pages.release("nobody")
        assert pages.free_pages == 4 and pages.sound()


def test_what_does_not_fit_changes_nothing() -> None:
    pages = PagedCache(4, 2, {3: 2}, 6)
    pages.reserve("a", 4)
    for name, tokens in (("a", 5), ("b", 1), ("a", 7)):
        assert not pages.fits(name, tokens)
        with pytest.raises(UseError, match="no page is free"):
            pages.reserve(name, tokens)
        assert pages.sound() and pages.free_pages == 2 and list(pages.length) == ["a"]
    pages.advance("a", 4)
    assert pages.fits("a", 5)


def test_a_fork_has_all_of_it() -> None:
    """A fork has the pages, the length, the batch and the encoder's memory of its request, and then grows by itself."""
    model, texts, sources = tiny("t5"), {"a": ids(9), "b": torch.cat([ids(5), ids(4, seed=3)])}, {"a": ids(7, seed=1)}
    pages = PagedCache(8, 4)
    serve(model, texts, [{"a": 5}], pages, sources=sources)
    pages.angle_length["a"] = 20
    pages.fork("a", "b")
    assert pages.angle_length["b"] == 20 and pages.length["b"] == 5 and pages.free_pages == 6
    got = serve(model, texts, [{"b": 1, "a": 2}, {"b": 3, "a": 2}], pages, lambda source, *rest: model(None, rest[0], rest[1]), sources)
    assert pages.free_pages == 8 - 1 - 2 * 2 and pages.sound()
    assert max(far(got[r], model(sources["a"][None], t[None])[0, 5:]) for r, t in texts.items()) < 1e-11
    pages.release("a")
    assert pages.sound() and {owner for _, owner in pages.memory} == {"b"}


def test_a_table_stays_where_it_is() -> None:
    """A table stays at one address, which recorded plans point to, while its pages are copied, given back and exchanged."""
    pages = PagedCache(8, 2, {3: 8}, 12)
    pages.reserve("a", 3)
    pages.advance("a", 3)
    at = [g.tables["a"].data_ptr() for g in pages.allocators.values()]
    pages.fork("a", "b")
    pages.reserve("a", 12)
    pages.advance("a", 11)
    cache = PrefixCache(pages)
    cache.keep("a", "", list(range(11)))
    tables = [allocator.tables["a"] for allocator in pages.allocators.values()]
    assert at == [table.data_ptr() for table in tables] and all(len(table) == 6 for table in tables)
    assert cache.sound()
