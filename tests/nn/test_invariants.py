"""The laws of causal models: cached, chunked, batched, padded, paged, packed runs are equal, and masks hold."""

import importlib
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pellucid.batch.kv_cache import Paged, PagedCache
from pellucid.batch.mask import Mask, bidirectional, causal, prefix
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.step import Step
from pellucid.nn import latent as latent_part
from pellucid.nn.attention import Attention
from pellucid.nn.transformer import Decoder, Stack
from tiny import DECODERS, LLAMA, V, far, ids, law, serve, tiny

attend = importlib.import_module("pellucid.ops.attend")  # the package names the function so
L = 11
TOKENS = ids(L)
LATE = Mask(lambda q, k: k <= q + 1)  # a mask shifted by one: every token sees the next
BLIND = Mask(lambda q, k: k == q)
HERE: Any = sys.modules[__name__]
plain, packed, paged, slots, release, blocks = Step.plain, Step.packed, Step.paged, PageAllocator.slots, PagedCache.release, Paged.blocks


def worst(gap: Any, families: Sequence[str] = tuple(DECODERS)) -> float:
    """Return the largest gap(model) over families."""
    with torch.no_grad():
        return max(gap(tiny(f)) for f in families)


def chunked(model: Decoder, chunks: Sequence[int], size: int = 4, tokens: Tensor = TOKENS) -> Tensor:
    """Return the logits of a prompt read in these chunks."""
    return serve(model, {0: tokens}, [{0: n} for n in chunks], PagedCache(len(tokens), size))[0]


def splits() -> list[list[int]]:
    """Return every chunk size, and random splits."""
    draw, sizes = random.Random(2), [[n] * (L // n) + [L % n] * (L % n > 0) for n in range(1, L + 1)]
    for _ in range(3):
        cuts = sorted(draw.sample(range(1, L), draw.randrange(1, 6)))
        sizes.append([b - a for a, b in zip([0, *cuts], [*cuts, L], strict=True)])
    return sizes


def restarted(pages: PagedCache, chunks: Any) -> Step:
    """Count each chunk's positions from 0, as a mutant."""
    step = paged(pages, chunks)
    step.positions = torch.cat([torch.arange(s.stop - s.start) for s in step.spans])[None]
    return step


def upper_left(q: Tensor, k: Tensor, v: Tensor, segment: Any, mask: Mask, scale: float) -> Tensor:
    """Align SDPA's is_causal to the upper left for a cached chunk, as a mutant."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)


@law(restarted=(Step, "paged", restarted), itself_unseen=(Paged, "blocks", lambda self: blocks(replace(self, end=max(1, self.end - 1)))))
def test_01_cache_is_no_cache() -> float:
    """Token by token, the logits are those of the full forward."""
    return worst(lambda m: far(chunked(m, [1] * L), m(TOKENS[None])[0]))


@law(upper_left=(attend, "attend_sdpa", upper_left), restarted=(Step, "paged", restarted))
def test_02_chunked_prefill() -> float:
    """All chunk sizes and random splits are equal; with pages of 4 their edges fall on and beside chunk edges."""
    return worst(lambda m: max(far(chunked(m, s), m(TOKENS[None])[0]) for s in splits()))


def ragged(lengths: Sequence[int], left: bool) -> Tensor:
    """Return the mask of a ragged batch."""
    at, wide = torch.arange(max(lengths)), max(lengths)
    return torch.stack([at >= wide - n if left else at < n for n in lengths]).long()


def batched(model: Decoder, prompts: Sequence[Tensor], padding: Tensor, filler: int) -> list[Tensor]:
    """Return the real rows' logits of prompts in one padded batch."""
    tokens = torch.full(padding.shape, filler)
    for row, real, p in zip(tokens, padding.bool(), prompts, strict=True):
        row[real] = p
    out = model(tokens, Step.plain(tokens, padding))
    return [o[real] for o, real in zip(out, padding.bool(), strict=True)]


def unmasked(tokens: Tensor, padding: Tensor | None = None, mask: Mask | None = None) -> Step:
    """Count padding as tokens, as a mutant."""
    return plain(tokens, None, mask)


def counted(tokens: Tensor, padding: Tensor | None = None, mask: Mask | None = None) -> Step:
    """Mask padding but count it in positions, as a mutant."""
    step = plain(tokens, padding, mask)
    step.positions = torch.where(step.positions < 0, -1, torch.arange(tokens.shape[1]))
    return step


@law(padding_seen=(Step, "plain", unmasked))
def test_03_batch_is_single() -> float:
    """A ragged batch equals each row alone, in any order and with rows repeated."""
    prompts = [ids(n, seed=n) for n in (3, 11, 1, 7)]

    def gap(model: Decoder) -> float:
        alone = [model(p[None])[0] for p in prompts]
        largest = 0.0
        for order in ([0, 1, 2, 3], [2, 0, 3, 1], [1, 1, 0, 0]):
            padding = ragged([len(prompts[i]) for i in order], left=len(set(order)) == 4)
            got = batched(model, [prompts[i] for i in order], padding, 0)
            largest = max([largest, *(far(g, alone[i]) for g, i in zip(got, order, strict=True))])
        return largest

    return worst(gap)


@law(padding_seen=(Step, "plain", unmasked), padding_counted=(Step, "plain", counted))
def test_04_padding() -> float:
    """0 to 40 rows of padding on either side or in the middle, of any id, change nothing."""

    def gap(model: Decoder) -> float:
        alone, largest = model(TOKENS[None])[0], 0.0
        for n, filler in ((0, 0), (1, 5), (7, V - 1), (40, 0)):
            for padding in (ragged([L, L + n], True), ragged([L, L + n], False)):
                largest = max(largest, far(batched(model, [TOKENS, ids(L + n)], padding, filler)[0], alone))
        amid = torch.ones(1, L + 3, dtype=torch.long)
        amid[0, 4:7] = 0
        return max(largest, far(batched(model, [TOKENS], amid, 3)[0], alone))

    return worst(gap)


@law(
    in_order=(PageAllocator, "slots", lambda self, request, start, stop: torch.arange(start, stop)),
    first_page=(PageAllocator, "slots", lambda self, r, a, b: slots(self, r, a, b) % self.size),
)
def test_05_paged_is_contiguous() -> float:
    """Pages of 1, 2, 16 and 17 rows in any order, for two requests in turns, equal a contiguous cache."""

    def gap(model: Decoder) -> float:
        largest = 0.0
        for size in (1, 2, 16, 17):
            pages = PagedCache(64, size)
            random.Random(size).shuffle(pages.allocators[None].free)
            got = serve(model, {0: TOKENS, 1: TOKENS.flip(0)}, [{0: 4, 1: 1}, {1: 3, 0: 1}, {0: 6, 1: 7}], pages)
            largest = max(largest, far(got[0], model(TOKENS[None])[0]), far(got[1], model(TOKENS.flip(0)[None])[0]))
        return largest

    return worst(gap)


def freed_twice(self: PagedCache, request: object) -> None:
    """Free pages twice, so that two requests get them, as a mutant."""
    for allocator in self.allocators.values():
        allocator.free += allocator.allocated[request]
    release(self, request)


@law(freed_twice=(PagedCache, "release", freed_twice))
def test_06_preempt_and_recompute() -> float:
    """A request that loses its pages to another and is read again is as if never interrupted."""

    def gap(model: Decoder) -> float:
        pages, texts = PagedCache(8, 4), {"a": TOKENS, "b": ids(10, seed=3)}
        serve(model, texts, [{"a": 6}, {"a": 1}], pages)
        pages.release("a")
        got = serve(model, texts, [{"b": 9}, {"a": 7}, {"b": 1, "a": 4}], pages)
        return max(far(got[r], model(t[None])[0]) for r, t in texts.items())

    return worst(gap)


copy = PagedCache.copy


def shared(self: PagedCache, allocator: PageAllocator, request: object, places: Sequence[int]) -> None:
    """Let each fork write over the other's next rows, as a mutant."""


def empty(self: PagedCache, allocator: PageAllocator, request: object, places: Sequence[int]) -> None:
    """Give a fork a page of its own that was never filled, as a mutant."""
    pools, self.pools = self.pools, {}
    copy(self, allocator, request, places)
    self.pools = pools


@law(shared=(PagedCache, "copy", shared), empty=(PagedCache, "copy", empty))
def test_06_fork() -> float:
    """Two texts that share a prefix, read once, and diverge in one batch are each as if alone."""

    def gap(model: Decoder) -> float:
        largest = 0.0
        for size, start in ((4, 6), (4, 8), (1, 5), (17, 3)):
            texts = {"a": TOKENS, "b": torch.cat([TOKENS[:start], ids(7, seed=5)])}
            pages = PagedCache(32, size)
            read = serve(model, texts, [{"a": start}], pages)["a"]
            pages.fork("a", "b")
            assert pages.free_pages == 32 - -(-start // size)
            got = serve(model, texts, [{"b": 1, "a": 1}, {"a": 2, "b": 3}, {"b": 3}], pages)
            alone = {r: model(t[None])[0] for r, t in texts.items()}
            largest = max(
                largest, far(read, alone["a"][:start]), far(got["a"], alone["a"][start : start + 3]), far(got["b"], alone["b"][start:])
            )
        return largest

    return worst(gap)


def moved(pages: PagedCache, rows: dict[Any, Any], at: Tensor) -> None:
    """Write saved rows back into the pools."""
    for part, kept in rows.items():
        for pool, k in zip(pages.pools[part], kept, strict=True):
            pool[at] = k


move = moved


@law(forgotten=(HERE, "moved", lambda pages, rows, at: None), turned=(HERE, "moved", lambda p, rows, at: move(p, rows, at.flip(0))))
def test_06_swap() -> float:
    """A request whose rows are saved, and return to other pages after others used its own, is as if never interrupted."""

    def gap(model: Decoder) -> float:
        pages, texts = PagedCache(9, 4), {"a": TOKENS, "b": ids(10, seed=3), "c": ids(5, seed=4)}
        first = serve(model, texts, [{"c": 2, "a": 6}], pages)["a"]
        at = pages.allocators[None].slots("a", 0, 6)
        saved_rows = {part: tuple(p[at] for p in pools) for part, pools in pages.pools.items()}
        pages.release("a")
        serve(model, texts, [{"b": 10, "c": 3}], pages)
        pages.reserve("a", 6)
        moved(pages, saved_rows, pages.allocators[None].slots("a", 0, 6))
        pages.length["a"] = 6
        rest = serve(model, texts, [{"a": 3}, {"a": 2}], pages)["a"]
        return max(far(torch.cat([first, rest]), model(TOKENS[None])[0]), float(torch.equal(at, pages.allocators[None].slots("a", 0, 6))))

    return worst(gap)


def leaks(model: Decoder, exact: bool) -> float:
    """Return how far earlier logits move with a later token; infinite if that token itself or a later one does not."""
    plain, largest = model(TOKENS[None])[0], 0.0
    for j in range(L):
        other = TOKENS.clone()
        other[j] = (other[j] + 1) % V
        moved = model(other[None])[0]
        if exact and not torch.equal(moved[:j], plain[:j]):
            return float("inf")
        seen = (moved[j:] - plain[j:]).abs().amax(-1) > 1e-9
        largest = max(largest, far(moved[:j], plain[:j]), 0.0 if seen.all() else float("inf"))
    return largest


SHIFTED: dict[str, Any] = {"late": (Attention, "mask", lambda self, step: LATE), "blind": (Attention, "mask", lambda self, step: BLIND)}


@law(0.0, **SHIFTED)
def test_07_no_leak_by_perturbation() -> float:
    """A later token changes no bit of earlier logits."""
    return worst(lambda m: leaks(m, True), ("gpt2", "llama", "qwen3"))


@law(1e-12, late=(latent_part, "causal", LATE), blind=(latent_part, "causal", BLIND))
def test_07_no_leak_by_perturbation_with_a_latent() -> float:
    """Earlier logits move by rounding only, since a token may change the order of an expert's sums."""
    return worst(lambda m: leaks(m, False), ("deepseek_v3",))


@law(1e-12, late=SHIFTED["late"])
def test_07_no_leak_by_perturbation_with_experts() -> float:
    """No earlier logit moves with windows and sinks; the second layer is full."""
    return worst(lambda m: leaks(m, False), ("gpt_oss",))


def visible(model: Decoder, n: int = 9) -> Tensor:
    """Return whether the logits of row i have a gradient at the embedding of row j: [i j]."""
    step = Step.plain(TOKENS[None, :n])
    x = model.embed(TOKENS[None, :n]).detach().requires_grad_()
    out = model.head(Stack.forward(model, x, step))[0]
    return torch.stack([torch.autograd.grad(row.sum(), x, retain_graph=True)[0][0].abs().amax(-1) > 0 for row in out])


@law(0.0, **SHIFTED)
def test_08_no_leak_by_gradient() -> float:
    """The gradient is exactly zero above the diagonal and nowhere zero on and below it."""
    return float(sum((visible(tiny(f)) != torch.ones(9, 9).tril().bool()).sum() for f in DECODERS))


@law(0.0, late=(Attention, "mask", lambda self, step: LATE), unlimited=(Attention, "mask", lambda self, step: causal))
def test_08_windows_reach_by_layers() -> float:
    """L layers of a window w depend on L (w - 1) tokens back and no farther."""
    wrong = 0
    for w in (1, 2, 3):
        layer = replace(LLAMA.layers[0], attn=replace(LLAMA.layers[0].attn, window=w))
        back = torch.arange(9)[:, None] - torch.arange(9)
        expected = (back >= 0) & (back <= 2 * (w - 1))
        wrong += int((visible(tiny(replace(LLAMA, layers=(layer,) * 2))) != expected).sum())
    return float(wrong)


def seen_by(model: Decoder, mask: Mask, changed: int) -> Tensor:
    """Return the rows that move when this token changes, under a caller's mask."""
    other = TOKENS.clone()
    other[changed] = (other[changed] + 1) % V
    a, b = (model(t[None], Step.plain(t[None], mask=mask))[0] for t in (TOKENS, other))
    return (a - b).abs().amax(-1) > 1e-9


def ignored(tokens: Tensor, padding: Tensor | None = None, mask: Mask | None = None) -> Step:
    return plain(tokens, padding)


def narrower(tokens: Tensor, padding: Tensor | None = None, mask: Mask | None = None) -> Step:
    return plain(tokens, padding, None if mask is None else mask & Mask(lambda q, k: (k <= q) | (k != 4)))


@law(ignored=(Step, "plain", ignored), narrower=(Step, "plain", narrower))
def test_09_prefix() -> float:
    """The first n tokens are bidirectional and the rest causal; n = 0 is causal, n = T is bidirectional."""

    def gap(model: Decoder) -> float:
        run = lambda mask: model(TOKENS[None], Step.plain(TOKENS[None], mask=mask))  # noqa: E731
        largest = max(far(run(prefix(0)), model(TOKENS[None])), far(run(prefix(L)), run(bidirectional)))
        largest = max(largest, 0.0 if far(run(bidirectional), model(TOKENS[None])) > 1e-3 else float("inf"))
        for j, first in ((0, 0), (4, 0), (5, 5), (10, 10)):
            largest = max(largest, float((seen_by(model, prefix(5), j) != (torch.arange(L) >= first)).sum()))
        return largest

    return worst(gap, ("gpt2", "llama", "qwen3", "deepseek_v3"))


def one_document(lengths: list[int], device: str = "cpu") -> Step:
    """Drop the spans, so that later documents see earlier ones, as a mutant."""
    return replace(packed(lengths), spans=())


def running(lengths: list[int], device: str = "cpu") -> Step:
    """Continue positions over documents, as a mutant; only learned positions can tell."""
    step = packed(lengths)
    step.positions = torch.arange(sum(lengths))[None]
    return step


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the sum over next tokens, so that documents add up."""
    return torch.nn.functional.cross_entropy(logits[:-1], tokens[1:], reduction="sum")


@law(one_document=(Step, "packed", one_document), running=(Step, "packed", running))
def test_10_packing() -> float:
    """Documents end to end are each as if alone: logits, loss and gradient."""
    texts = [ids(n, seed=n) for n in (4, 1, 7, 3)]

    def gap(model: Decoder) -> float:
        with torch.enable_grad():
            got = model(torch.cat(texts)[None], Step.packed([len(t) for t in texts]))[0].split([len(t) for t in texts])
            alone = [model(t[None])[0] for t in texts]
            losses = [sum(loss(out, t) for out, t in zip(outs, texts, strict=True)) for outs in (got, alone)]
            grads = [torch.autograd.grad(value, model.layers[0].attn.o.weight)[0] for value in losses]
        return max([far(*losses), far(*grads), *map(far, got, alone)])

    return worst(gap)
