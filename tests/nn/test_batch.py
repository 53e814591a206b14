"""One forward for a batch: requests of different lengths and ages, flattened to one row of T, each equal to its run alone."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.batch.kv_cache import Paged, PagedCache, Segment, Span
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.plain_rows import Stored
from pellucid.batch.step import Step
from pellucid.nn.latent import Latent
from pellucid.nn.moe import Moe
from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch, watch
from tiny import DECODERS, far, ids, serve, swapped, tiny

PLAN = [
    {"a": 5, "d": 2},
    {"a": 1, "b": 4, "d": 1, "c": 6},
    {"b": 2, "a": 1, "d": 1, "c": 3, "e": 2},  # chunks of three prompts, and two that decode
    {"e": 1, "a": 1, "c": 1, "b": 1, "d": 1},
    {"d": 4, "a": 2, "e": 1},
]
PROMPTS = {r: ids(sum(chunks.get(r, 0) for chunks in PLAN), seed=i) for i, r in enumerate("abcde")}
SIZES = [1, 2, 4, 17]


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def gap(model: nn.Module, size: int = 4, feed: Callable[..., Tensor] | None = None) -> float:
    """Return the largest difference between a request in the batch and alone."""
    got = serve(model, PROMPTS, PLAN, PagedCache(64, size), feed)
    return max(far(got[r], model(p[None])[0]) for r, p in PROMPTS.items())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(6)
def test_batch_is_each_alone(family: str, size: int) -> None:
    assert gap(tiny(family), size) < 1e-11


@pytest.mark.parametrize("family", DECODERS)
def test_shuffled_pages(family: str) -> None:
    model, pages = tiny(family), PagedCache(64, 2)
    pages.allocators[None].free[:] = torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist()
    got = serve(model, PROMPTS, PLAN, pages)
    assert max(far(got[r], model(p[None])[0]) for r, p in PROMPTS.items()) < 1e-11


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(4)
def test_a_request_reads_every_page_mutant(family: str) -> None:
    def leak(self: Step, pages: PageAllocator, pools: Stored, s: Span) -> Segment:
        rows, everything = slice(s.start, s.stop), pages.count * pages.size
        paged = Paged(pools, torch.arange(pages.count), pages.size, everything)
        at = lambda: torch.arange(everything)[None]  # noqa: E731
        return Segment(s.request, rows, self.positions[:, rows], at, lambda: tuple(p[None] for p in pools), False, paged)

    with swapped(Step, "_page", leak):
        assert gap(tiny(family)) > 1e-3


def calls(model: nn.Module, run: Callable[[], object]) -> tuple[Counter[str], int]:
    """Return how often each linear was called, by its path, and how often an expert's matrix was used."""
    counted, experts, real = Counter[str](), [], ops.grouped
    hooks = [
        m.register_forward_hook(lambda *_, path=path: counted.update([path]))
        for path, m in model.named_modules()
        if isinstance(m, nn.Linear)
    ]
    with swapped(ops, "grouped", lambda *a: experts.append(1) or real(*a)):
        run()
    for hook in hooks:
        hook.remove()
    return counted, len(experts)


@pytest.mark.parametrize("family", DECODERS)
def test_one_call_of_each_linear_a_step(family: str) -> None:
    model = tiny(family)
    counted, experts = calls(model, lambda: serve(model, PROMPTS, PLAN))
    assert set(counted.values()) == {len(PLAN)}
    read = {f"{path}.kv_b" for path, m in model.named_modules() if isinstance(m, Latent)}
    read |= {f"{path}.router" for path, m in model.named_modules() if isinstance(m, Moe)}
    assert {path for path, m in model.named_modules() if isinstance(m, nn.Linear)} - set(counted) == read  # read as matrices, never called
    assert experts == 3 * len(PLAN) * sum(isinstance(m, Moe) for m in model.modules())


def test_a_loop_over_requests_mutant() -> None:
    """A loop over requests gives the right logits and more calls."""
    model = tiny("qwen3")

    def loop(rows: Tensor, step: Step) -> Tensor:
        lone = []
        for s in step.spans:
            own = Step(step.positions[:, s.start : s.stop], (Span(s.request, 0, s.stop - s.start, s.before),), step.pages)
            lone.append(model(rows[:, s.start : s.stop], own))
        return torch.cat(lone, 1)

    assert gap(model, feed=loop) < 1e-11
    counted, _ = calls(model, lambda: serve(model, PROMPTS, PLAN, feed=loop))
    assert set(counted.values()) == {sum(map(len, PLAN))} != {len(PLAN)}


def watched(model: nn.Module, name: str, plan: list[dict[str, int]], size: int) -> list[list[Seen]]:
    """Return the records of one request, step by step; steps without it must record nothing."""
    steps: list[list[Seen]] = []

    def feed(rows: Tensor, step: Step) -> Tensor:
        with watch(model, request=name) as seen:
            out = model(rows, step)
        steps.append(list(seen))
        return out

    serve(model, PROMPTS, plan, PagedCache(64, size), feed)
    return steps


def mismatch(family: str, name: str = "c", size: int = 4) -> float:
    """Return how far a request's records in the batch are from those of its run alone: path, axes, shape, value and rows."""
    model = tiny(family)
    flat_batch = watched(model, name, PLAN, size)
    alone = watched(model, name, [{name: chunks[name]} for chunks in PLAN if name in chunks], size)
    joined: dict[str, list[Tensor]] = {}
    worst, lone = 0.0, iter(alone)
    for chunks, seen in zip(PLAN, flat_batch, strict=True):
        if name not in chunks:
            worst = max(worst, float(len(seen)))
            continue
        other = next(lone)
        if [(s.path, s.dims, s.shape, s.request, s.call) for s in seen] != [(s.path, s.dims, s.shape, s.request, s.call) for s in other]:
            return float("inf")
        for s, o in zip(seen, other, strict=True):
            worst = max(worst, far(s.value, o.value))
            if (s.rows is None) != (o.rows is None) or (s.rows is not None and not torch.equal(s.rows, o.rows)):
                return float("inf")
            if "T" in s.dims and "S" not in s.dims:
                joined.setdefault(s.path, []).append(s.value)
            if s.path.endswith("routed"):
                (before,) = (x.value[0] for x in seen if x.path == s.path.replace("ffn.routed", "ffn_norm"))
                worst = max(worst, far(s.value, before[s.rows]))
    with watch(model) as plain:
        model(PROMPTS[name][None])
    for path, chunks_of in joined.items():
        worst = max(worst, far(torch.cat(chunks_of, 1), plain[path].value))
    return worst


@pytest.mark.parametrize("size", [1, 17])
@pytest.mark.parametrize("name", ["c", "d"])
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(5)
def test_watched_in_the_batch_is_watched_alone(family: str, name: str, size: int) -> None:
    assert mismatch(family, name, size) < 1e-11


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss"])
def test_rows_not_renumbered_mutant(family: str) -> None:
    """A watch that takes rows sorted by expert as they come names the wrong tokens."""
    right = Watch.part_of_request

    def unsorted(self: Watch, x: Tensor, dims: str, rows: Tensor | None) -> Any:
        return right(self, x, dims, None if rows is None else torch.arange(len(rows)) // 2)

    with swapped(Watch, "part_of_request", unsorted):
        assert mismatch(family) > 1e-3


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss"])
def test_unstable_sort_mutant(family: str) -> None:
    """Ties sorted in an order that depends on the number of rows keep each expert's rows, and change the batch's sums."""
    right = torch.Tensor.argsort

    def unstable(x: Tensor, stable: bool = False) -> Tensor:
        draw = torch.randperm(len(x), generator=torch.Generator().manual_seed(len(x)))
        return draw[right(x[draw], stable=True)]

    with swapped(torch.Tensor, "argsort", unstable):
        assert gap(tiny(family)) < 1e-11
        assert mismatch(family) > 1e-3


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss"])
def test_rows_not_sorted_mutant(family: str) -> None:
    """Without sorting each expert would read other tokens' rows, depending on the batch."""
    with swapped(torch.Tensor, "argsort", lambda x, stable=False: torch.arange(len(x))):
        assert gap(tiny(family)) > 1e-3


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(4)
def test_watching_one_request_changes_none(family: str) -> None:
    """A watch of one request changes no bit, in float32 too."""
    for dtype in (torch.float64, torch.float32):
        model = tiny(family, dtype)

        def feed(rows: Tensor, step: Step, model: nn.Module = model) -> Tensor:
            with watch(model, request="c"):
                return model(rows, step)

        plain, seen = serve(model, PROMPTS, PLAN), serve(model, PROMPTS, PLAN, feed=feed)
        assert all(torch.equal(plain[r], seen[r]) for r in PROMPTS)


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_decoding_reads_pages_where_they_lie(family: str) -> None:
    """A decoding step copies nothing of the cache: its blocks are views of the pools."""
    model, read, pages, spied = tiny(family), Paged.blocks, PagedCache(64, 4), []

    def spy(self: Paged) -> Any:
        for stored, at in read(self):
            spied.append(
                all(s.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() for s, p in zip(stored, self.pools, strict=True))
            )
            yield stored, at

    with swapped(Paged, "blocks", spy):
        serve(model, PROMPTS, PLAN, pages)
    assert spied and all(spied)
