"""Deterministic mode gives the same bits alone and in any batch, refuses other models with a reason, and sees its mutants."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import campaigns.deterministic as campaign
from covering import config_of
from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import Mask, bidirectional, causal, prefix, relative, window
from pellucid.config import Buckets
from pellucid.engine import determinism
from pellucid.engine.engine import Engine
from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.sampling.stages import logprobs
from pellucid.watching.watch import watch
from test_engine import Stingy
from test_native import DTYPES, WIDTHS, near, rand
from test_native_rows import truth
from test_plan import needs_kernels
from test_plan_families import DECODED, REFUSED
from tiny import tiny

MANY = [17, 23, 40, 64]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [*WIDTHS, 5000])
def test_a_row_of_a_product_among_many(dtype: torch.dtype, k: int) -> None:
    """A row of a product has the bits that it has alone, at any edge of tiles and panels."""
    for n in (1, 7, 48, 61, 300) if k < 1000 else (50,):
        x, w, b = rand(64, k, dtype=dtype), rand(n, k, dtype=dtype, seed=1), rand(n, dtype=dtype, seed=2)
        single = torch.cat([native.linear(x[i : i + 1], w, b) for i in range(64)])
        wide = torch.cat([native.linear_wide(x[i : i + 1], w, None) for i in range(64)])
        assert near(single, x.double() @ w.double().T + b.double(), 2)
        for rows in MANY:
            assert torch.equal(native.linear(x[:rows], w, b), single[:rows])
        assert torch.equal(native.linear_wide(x, w, None), wide)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_experts_of_many_rows(dtype: torch.dtype) -> None:
    """An expert's rows have the bits that they have alone, for many, few or no rows and any order, and so has each token's sum."""
    draw = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(7, generator=draw)[:3] for _ in range(60)])[None]
    chosen = torch.where((chosen == 5) & (torch.arange(60)[None, :, None] > 4), 6, chosen)
    x, weight, bias = rand(1, 60, 50, dtype=dtype), rand(7, 70, 50, dtype=dtype, seed=1), rand(7, 70, dtype=dtype, seed=2)
    order, token, ends = native.sort(chosen, 8)
    flat = chosen.flatten()
    assert torch.equal(order, flat.argsort(stable=True)) and torch.equal(token, order // 3)
    assert torch.equal(ends, torch.bincount(flat, minlength=8).cumsum(0).int())
    rows = ops.gather(x, token)
    y = native.experts(rows, weight, ends[:7].contiguous(), bias)
    for i in range(len(rows)):
        e = int(flat[order[i]])
        assert torch.equal(y[i], native.linear(rows[i : i + 1], weight[e], bias[e])[0])
    share = rand(1, 60, 3, dtype=torch.float32, seed=4)
    z = native.combine(y, share, order, rand(1, 60, 70, dtype=dtype))
    for t in (0, 3, 59):
        own = (token == t).nonzero().flatten()
        mine = native.combine(y[own].contiguous(), share[:, t : t + 1].contiguous(), order[own] - 3 * t, z[:, :1].contiguous())
        assert torch.equal(z[:, t], mine[:, 0])


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_row_meets_does_not_go_by_its_neighbours(dtype: torch.dtype) -> None:
    """Norms, gates, scores and log-probabilities of 1 to 64 rows do not depend on the other rows."""
    x, up, w = rand(1, 64, 37, dtype=dtype, scale=3), rand(1, 64, 37, dtype=dtype, seed=1), rand(37, dtype=dtype, seed=2)
    scores = x.to(torch.promote_types(dtype, torch.float32))
    each: list[Callable[[slice], Tensor]] = [
        lambda r: ops.rms(x[:, r], w, 1e-5),
        lambda r: ops.layer(x[:, r], w, w, 1e-5),
        lambda r: ops.gate(x[:, r], up[:, r], "silu"),
        lambda r: ops.gate(x[:, r], None, "gelu"),
        lambda r: ops.add(x[:, r], up[:, r]),
        lambda r: ops.capped(x[:, r], 2.0),
        lambda r: ops.softmax(scores[:, r]),
        lambda r: ops.sigmoid(scores[:, r]),
        lambda r: logprobs(x[0, r])[None],
        lambda r: logprobs(x.repeat(1, 1, 30)[0, r])[None],
    ]
    with native.any_rows():
        for f in each:
            single = torch.cat([f(slice(i, i + 1)) for i in range(64)], 1)
            for rows in range(1, 65):
                assert torch.equal(f(slice(64 - rows, 64)), single[:, 64 - rows :])


def segment_of(dtype: torch.dtype, seen: int, rows: int) -> tuple[Tensor, Segment]:
    """The last rows of a document, against all of it."""
    at = torch.arange(seen)[None]
    k, v = rand(1, seen, 2, 24, dtype=dtype), rand(1, seen, 2, 9, dtype=dtype, seed=1)
    q = rand(1, seen, 4, 24, dtype=dtype, seed=2)[:, seen - rows :]
    return q, Segment(None, slice(None), at[:, seen - rows :], lambda: at, lambda: (k, v), True)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["both ways", "prefix", "prefix under a window", "buckets both ways", "causal"])
def test_documents_and_rows_that_see_ahead(name: str, dtype: torch.dtype) -> None:
    table = rand(8, 4, dtype=dtype, seed=9, scale=2)
    masks: dict[str, Mask] = {
        "both ways": bidirectional, "prefix": prefix(20), "prefix under a window": prefix(20) & window(11),
        "buckets both ways": Mask(bidirectional.allowed, relative(table, Buckets(8, 16, True))), "causal": causal,
    }  # fmt: skip
    for seen, rows in ((1, 1), (33, 33), (40, 7)):
        q, segment = segment_of(dtype, seen, rows)
        want = truth(q, segment, masks[name], 0.4)
        with native.any_rows():
            z = ops.attend(q, KVCache([segment]), masks[name], 0.4)
            with determinism.Numbers():  # the table of buckets is there now
                assert torch.equal(z, ops.attend(q, KVCache([segment]), masks[name], 0.4))
        assert near(z, want), (seen, rows)


@needs_kernels
@pytest.mark.parametrize(("family", "quirk"), DECODED)
@pytest.mark.quick(18)
def test_every_family_holds_or_is_refused(family: str, quirk: str) -> None:
    """A family is refused if it computes outside the kernels, as the table of plans says."""
    for dtype in DTYPES if quirk == "plain" else DTYPES[:1]:
        why = determinism.reason(tiny(config_of(family, quirk), dtype, std=0.2))
        refused = REFUSED.get((family, quirk), REFUSED.get(family))
        assert (why is None) == (refused is None), why
        assert why is None or "aten." in why


@needs_kernels
@pytest.mark.parametrize(("family", "dtype"), campaign.CASES, ids=str)
@pytest.mark.quick(4)
def test_alone_and_in_batches(family: str, dtype: torch.dtype) -> None:
    """Tokens, log-probabilities and likeliest tokens are the same alone and in any batch, to the last bit."""
    draw, model = random.Random(f"{family}"), tiny(family, dtype)
    requests = [campaign.random_request(draw) for _ in range(10)]
    lone = campaign.alone(model, requests)
    assert len({str(t) for t in lone}) > 6
    for _ in range(3):
        assert campaign.mixed(model, requests, draw) == lone


@needs_kernels
def test_sources_in_a_crowd() -> None:
    for family in ("t5", "marian"):
        model = tiny(config_of(family, "plain"), torch.float32, std=0.2)
        requests = [Request((0,), 5, source=tuple(range(3, 3 + n)), logprobs=1) for n in (4, 30, 19, 1)]
        engine = Engine.of(model, 200, deterministic=True)
        assert campaign.run_requests(engine, requests) == [campaign.run_requests(engine, [r])[0] for r in requests]


def test_refused_with_the_reason() -> None:
    for model in (tiny("llama", torch.float64), tiny("gpt2", torch.float16)):
        with pytest.raises(UseError, match=r"aten\.\w+|kernels"):
            Engine.of(model, 64, deterministic=True)
    with native.off(), pytest.raises(UseError, match="kernels"):
        Engine.of(tiny("llama", torch.float32), 64, deterministic=True)
    with native.off():
        Engine.of(tiny("llama", torch.float32), 64)


@needs_kernels
def test_generate_keeps_its_modes_apart() -> None:
    """An engine of one mode does not serve the other, and the mode ends with its forward."""
    model, free = tiny("llama", torch.float32), list[Engine]()
    requests = [Request(tuple(range(n, 3 * n)), 4) for n in (3, 20, 30)]
    for mode in (False, True, True, False):
        assert len(list(generate(model, requests, free, deterministic=mode))) == 12
    assert sorted(e.deterministic for e in free) == [False, True] and native.most(16) == 16


@needs_kernels
def test_the_self_test_is_unseen_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("qwen3", torch.float32)
    with watch(model) as seen:
        Engine.of(model, 64, deterministic=True)
    assert not list(seen)
    monkeypatch.setattr(determinism, "reason", lambda module: pytest.fail("asked again"))
    Engine.of(model, 64, deterministic=True)


def test_scores_are_emitted_once() -> None:
    """A text that is preempted in its prompt emits its scores once, though its rows are computed again."""
    model = tiny("llama", torch.float32)
    requests = [Request(tuple(range(i, i + 20)), 2, scored=True) for i in range(4)]
    want = [campaign.run_requests(Engine.of(model, 40), [r])[0][0][1] for r in requests]
    for at in range(1, 30, 3):
        engine = Engine.of(model, 200, SchedulerLimits(7), 4)
        engine.storage = Stingy(engine.storage, at)  # type: ignore[arg-type]
        for outputs, scores in zip(campaign.run_requests(engine, requests), want, strict=True):
            assert torch.allclose(torch.tensor(outputs[0][1]), torch.tensor(scores), atol=1e-4) and len(scores) == 19


def of_few(fits: Callable[..., bool], at: int = 0, axis: int = -2) -> Callable[..., bool]:
    """Return a check that accepts up to 16 rows only, as in normal mode."""
    return lambda *given: bool(given[at].shape[axis] <= 16 and fits(*given))


def by_many(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a product that sums in another order above 16 rows."""

    def made(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if native.twins_count(x) <= 16:  # type: ignore[attr-defined]
            return product(x, weight, bias)
        return product(x.flip(-1), weight.flip(-1).contiguous(), bias)

    return made


def split(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an attention that joins the keys before this chunk with the chunk's own."""

    def made(
        q: Tensor, pools: Any, table: Tensor, at: Tensor, size: int, scale: float, mask: Mask, end: int = 0, kept: Any = None
    ) -> Tensor:
        if table.ndim == 2 or q.shape[1] == 1 or kept is not None:
            return attend(q, pools, table, at, size, scale, mask, end, kept)
        place = table[torch.arange(end) // size] * size + torch.arange(end) % size
        k, v = (p[place].repeat_interleave(q.shape[2] // p.shape[1], 1) for p in pools)
        scores = torch.einsum("thk,shk->hts", q[0] * scale, k).masked_fill(torch.arange(end) > at[0][:, None], -torch.inf)
        halves = [scores[..., : int(at[0, 0])], scores[..., int(at[0, 0]) :]]
        tops = [h.logsumexp(-1) for h in halves]
        total = torch.logaddexp(*tops)
        shares = [h.softmax(-1).nan_to_num(0) for h in halves]
        cut = v.split([h.shape[-1] for h in halves])
        parts = [torch.einsum("hts,shw->thw", s, w) for s, w in zip(shares, cut, strict=True)]
        return sum(p * (t - total).exp().T[..., None] for p, t in zip(parts, tops, strict=True))[None].contiguous()  # type: ignore[union-attr]

    return made


def unstable(combine: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a combine whose order of sums depends on the number of tokens."""

    def made(rows: Tensor, share: Tensor | None, order: Tensor, like: Tensor) -> Tensor:
        return combine(rows, share, order, like) if like.shape[1] % 2 else combine(rows.flip(0), share, order.flip(0), like)

    return made


MUTANTS: list[tuple[str, str, Callable[..., Any]]] = [
    ("llama", "fits_linear", of_few),
    ("llama", "linear", by_many),
    ("llama", "fits_attend", lambda fits: of_few(fits, axis=1)),
    ("llama", "attend", split),
    ("gpt_oss", "combine", unstable),
    ("deepseek_v3", "fits_latent", lambda fits: of_few(fits, axis=1)),
    ("deepseek_v3", "fits_experts", of_few),
    ("llama", "fits_norm", lambda fits: of_few(fits, axis=1)),
]


@needs_kernels
@pytest.mark.parametrize(("family", "name", "wrong"), MUTANTS, ids=[f"{m[1]}" for m in MUTANTS])
@pytest.mark.quick(4)
def test_mutants_are_seen(family: str, name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test and the comparison of texts each see the mutant."""
    monkeypatch.setattr(native, "twins_count", lambda x: x.numel() // x.shape[-1], raising=False)
    monkeypatch.setattr(native, name, wrong(getattr(native, name)))
    model, draw = tiny(family, torch.float32), random.Random(3)
    assert determinism.reason(model) is not None
    monkeypatch.setattr(determinism, "reason", lambda module, format: None)
    requests = [campaign.random_request(draw) for _ in range(10)]
    lone = campaign.alone(model, requests)
    assert any(campaign.mixed(model, requests, draw) != lone for _ in range(3))


def test_torch_s_products_are_why() -> None:
    """Torch's products may give a row other bits among other rows, so the mode is needed."""
    x, w = rand(64, 96, dtype=torch.float32), rand(80, 96, dtype=torch.float32, seed=1)
    single = torch.cat([F.linear(x[i : i + 1], w) for i in range(64)])
    assert not torch.equal(F.linear(x, w), single) or native.instructions() is None
