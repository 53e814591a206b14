"""Cross attention reads the encoder's rows once for each request and keeps their keys under the part."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pellucid.batch import mask
from pellucid.batch.kv_cache import KVCache, PagedCache, Segment
from pellucid.batch.step import Step
from pellucid.errors import ShapeError, TraceError
from pellucid.nn.attention import Attention
from pellucid.watching.watch import watch
from tiny import FAMILIES, far, ids, serve, swapped, tiny

PLAN = [{"a": 4, "b": 1}, {"a": 1, "c": 6, "b": 2}, {"a": 1, "b": 1, "c": 1}, {"b": 4, "a": 5, "c": 4}, {"c": 1, "a": 1}]
TARGETS = {r: ids(sum(chunks.get(r, 0) for chunks in PLAN), seed=i) for i, r in enumerate("abc")}
SOURCES = {"a": ids(7, seed=10), "b": ids(5, seed=11), "c": ids(19, seed=12)}


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def flat_batch(model: nn.Module, size: int = 4) -> tuple[float, dict[str, int]]:
    """Return the largest difference between a request in the batch and alone, and how often each cross.k and cross.v was called."""
    alone = {r: model(SOURCES[r][None], TARGETS[r][None])[0] for r in TARGETS}
    calls: dict[str, int] = {}
    hooks = [
        m.register_forward_hook(lambda *_, path=path: calls.update({path: calls.get(path, 0) + 1}))
        for path, m in model.named_modules()
        if path.endswith(("cross.k", "cross.v"))
    ]
    got = serve(model, TARGETS, PLAN, PagedCache(64, size), sources=SOURCES)
    for hook in hooks:
        hook.remove()
    return max(far(got[r], alone[r]) for r in TARGETS), calls


@pytest.mark.parametrize("size", [1, 2, 4, 17])
def test_three_requests_over_pages(size: int) -> None:
    """For sources of 7, 5 and 19 rows the keys are computed in the two of five steps that bring a new source."""
    gap, calls = flat_batch(tiny("t5"), size)
    assert gap < 1e-11
    assert set(calls.values()) == {2} and len(calls) == 6


@pytest.mark.parametrize(("target", "source"), [(11, 7), (3, 19), (1, 1)])
def test_cached_decoding_is_the_full_run(target: int, source: int) -> None:
    """Decoding token by token over pages reads the source once and equals the full run."""
    model, read, wanted = tiny("t5"), ids(source, seed=5), ids(target)
    full = model(read[None], wanted[None])[0]
    encoded: list[int] = []
    hook = model.encoder.register_forward_hook(lambda *_: encoded.append(1))
    got = serve(model, {"a": wanted}, [{"a": 1}] * target, PagedCache(64, 3), sources={"a": read})["a"]
    hook.remove()
    assert far(got, full) < 1e-11 and len(encoded) == 1


def test_padded_sources() -> None:
    """Sources of one padded batch are each as if alone, whatever the padding holds."""
    model, read, wanted = tiny("t5"), ids(2, 9, seed=5), ids(2, 6)
    padding = torch.ones(2, 9, dtype=torch.long)
    padding[0, 5:], padding[1, :2] = 0, 0
    got = model(read, wanted, None, Step.plain(read, padding))
    assert far(got[:1], model(read[:1, :5], wanted[:1])) < 1e-11
    assert far(got[1:], model(read[1:, 2:], wanted[1:])) < 1e-11
    assert far(got, model(read, wanted)) > 1e-3


def test_the_decoder_reads_the_source() -> None:
    """Every target row depends on every source row, and the encoder is bidirectional."""
    model, read, wanted = tiny("t5"), ids(1, 7, seed=5), ids(1, 6)
    plain = model(read, wanted)
    for j in range(7):
        other = read.clone()
        other[0, j] = (other[0, j] + 1) % 97
        assert (model(other, wanted) - plain).abs().amax(-1).min() > 1e-6


def test_labels_and_paths() -> None:
    """Cross keys have axis S, watching changes no bit, a table used twice is read as a list, and the bias table is shared."""
    model, read, wanted = tiny("t5"), ids(2, 7, seed=5), ids(2, 11)
    with watch(model, terms=True) as seen:
        out = model(read, wanted)
    assert torch.equal(out, model(read, wanted))
    k, q = seen["decoder.layers.1.cross.k"], seen["decoder.layers.1.cross.q"]
    assert (k.dims, k.shape, q.dims, q.shape) == ("B S G K", (2, 7, 4, 8), "B T H K", (2, 11, 4, 8))
    assert seen["decoder.layers.1.cross.pattern"].shape == (2, 4, 11, 7)
    assert len({id(layer.attn.relative) for layer in model.decoder.layers}) == 1
    assert model.encoder.layers[0].attn.relative is not model.decoder.layers[0].attn.relative
    assert seen["source"].shape == (2, 7, 32) and seen["embed"].shape == (2, 11, 32)
    with pytest.raises(TraceError):
        seen["decoder.cross.k"]


def by_hand(distance: int, edges: list[int]) -> int:
    """Return the bucket of a distance >= 0: the number of edges that it has reached."""
    return sum(distance >= e for e in edges)


# Where a new bucket begins, worked out from arXiv 1910.10683: exact up to half of the buckets, then by equal ratios to the reach.
EDGES = {
    (8, 16): [1, 2, 3, 4, 6, 8, 12],
    (32, 128): [*range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113],
}
EDGES_BOTH = {(8, 16): [1, 2, 6], (32, 128): [*range(1, 9), 12, 16, 23, 32, 46, 64, 91]}


def wrong_buckets() -> list[tuple[int, int]]:
    """Return the distances whose bucket is not the hand table's."""
    wrong = []
    for two_sided, table in ((False, EDGES), (True, EDGES_BOTH)):
        for (count, reach), edges in table.items():
            for d in range(-300, 301):
                side = count // 2 if two_sided and d > 0 else 0
                hand = side + by_hand(abs(d) if two_sided else max(-d, 0), edges)
                if mask.bucket(torch.tensor(d), count, reach, two_sided) != hand:
                    wrong.append((count, d))
    return wrong


def test_buckets_by_hand() -> None:
    assert wrong_buckets() == []


@pytest.mark.parametrize("mutant", ["sign", "reach", "sides"])
def test_buckets_mutants(mutant: str) -> None:
    right = mask.bucket
    wrong = {
        "sign": lambda d, n, r, two: right(-d, n, r, two),
        "reach": lambda d, n, r, two: right(d, n, r + 4, two),
        "sides": lambda d, n, r, two: right(d, n, r, not two),
    }
    with swapped(mask, "bucket", wrong[mutant]):
        assert wrong_buckets()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_bias_is_the_table(side: str) -> None:
    """Recorded scores are q·k plus the table's row of each distance in every layer: bidirectional in the encoder, else causal."""
    model, read, wanted = tiny("t5"), ids(1, 30, seed=5), ids(1, 30)
    with watch(model) as seen:
        model(read, wanted)
    table = getattr(model, side).layers[0].attn.relative.weight
    rows = torch.arange(30)
    edges = (EDGES_BOTH if side == "encoder" else EDGES)[8, 16]
    at = [
        [by_hand(abs(d) if side == "encoder" else max(-d, 0), edges) + 4 * (side == "encoder" and d > 0) for d in (rows - t).tolist()]
        for t in range(30)
    ]
    bias = table[torch.tensor(at)].permute(2, 0, 1)
    for i in range(len(getattr(model, side).layers)):
        q, k = (seen[f"{side}.layers.{i}.attn.{n}"].value for n in "qk")
        assert far(seen[f"{side}.layers.{i}.attn.scores"].value[0], torch.einsum("thk,shk->hts", q[0], k[0]) + bias) < 1e-10


def test_first_memory_for_everybody_mutant() -> None:
    right = Step.memory

    def first(self: Step, part: nn.Module, make: Any) -> KVCache:
        kv_cache = right(self, part, make)
        lead = kv_cache.segments[0]
        return KVCache([Segment(p.request, p.rows, p.q_at, lambda: lead.k_at, lead.read) for p in kv_cache.segments], kv_cache.new)

    with swapped(Step, "memory", first):
        assert flat_batch(tiny("t5"))[0] > 1e-3


def test_memory_not_under_the_part_mutant() -> None:
    """With one slot for all layers every layer but the first would read the first one's keys."""
    right = Step.memory
    with swapped(Step, "memory", lambda self, part, make: right(self, "cross", make)):
        assert sum(flat_batch(tiny("t5"))[1].values()) != 12
        model, wanted = tiny("t5"), TARGETS["a"]
        shared = serve(model, TARGETS, [{"a": len(wanted)}], sources=SOURCES)["a"]
    assert far(shared, model(SOURCES["a"][None], wanted[None])[0]) > 1e-3


def test_memory_not_kept_mutant() -> None:
    """Reading the source again at every step gives the same logits; only the count of calls differs."""
    model, plan = tiny("t5"), [{"a": 1}] * 4
    pages, calls = PagedCache(), []
    hook = model.decoder.layers[0].cross.k.register_forward_hook(lambda *_: calls.append(1))
    for i, chunks in enumerate(plan):
        step = Step.paged(pages, chunks)
        model(
            SOURCES["a"][None],
            TARGETS["a"][None, i : i + 1],
            step,
            Step(torch.arange(7)[None], (replace(step.spans[0], stop=7, before=0),)),
        )
        step.advance()
        pages.memory.clear()
    hook.remove()
    assert len(calls) == len(plan)


def test_cross_keys_labelled_t_mutant() -> None:
    model, right = tiny("t5"), Attention.project_kv
    with (
        swapped(Attention, "project_kv", lambda self, x, length: right(self, x, "T")),
        pytest.raises(ShapeError, match=r"decoder\.layers\.0\.cross\.k"),
        watch(model),
    ):
        model(ids(2, 7), ids(2, 11))


def test_release_forgets_the_memory() -> None:
    """A released name that comes again with another source does not read the old one's rows."""
    model, pages = tiny("t5"), PagedCache(8, 4)
    serve(model, TARGETS, [{"a": 4}], pages, sources=SOURCES)
    pages.release("a")
    assert not pages.memory and len(pages.allocators[None].free) == 8
    got = serve(model, {"a": TARGETS["b"]}, [{"a": 4}], pages, sources={"a": SOURCES["b"]})["a"]
    assert far(got, model(SOURCES["b"][None], TARGETS["b"][None, :4])[0]) < 1e-11


def test_config_is_cross() -> None:
    """The tiny model is of T5's shape: a causal stack with cross attention, and a bidirectional one."""
    cfg = FAMILIES["t5"]
    assert cfg.encoder is not None and all(layer.cross for layer in cfg.layers) and not any(layer.cross for layer in cfg.encoder)


remembered = Step.memory


def kept_once(self: Step, part: nn.Module, make: Any) -> Any:
    """Keep the first memory of a step, whatever source comes, as a mutant."""
    source, self.source = self.source, None if any(key[0] is part for key in self.kept) else self.source
    cached = remembered(self, part, make)
    self.source = source
    return cached


def test_a_step_that_runs_again_reads_its_own_source() -> None:
    """A step used for two calls reads the second source in the second."""
    model, step, tokens = tiny("t5"), Step.plain(ids(1, 5)), ids(1, 5)
    wanted = model(ids(1, 7, seed=2), tokens)
    model(ids(1, 7, seed=1), tokens, step)
    assert far(model(ids(1, 7, seed=2), tokens, step), wanted) < 1e-12
    step = Step.plain(tokens)
    with swapped(Step, "memory", kept_once):
        model(ids(1, 7, seed=1), tokens, step)
        assert far(model(ids(1, 7, seed=2), tokens, step), wanted) > 1e-3
