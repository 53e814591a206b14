"""MLA: two forms of the same mathematics, over a cache of the latent and one shared rotary key."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid.axes import bind
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.errors import ShapeError
from pellucid.nn.latent import Latent
from pellucid.nn.transformer import build, cast
from pellucid.ops import latent
from pellucid.watching.watch import watch
from test_batch import PLAN, PROMPTS
from tiny import DEEPSEEK_V3, MLA, far, ids, serve, swapped, tiny

FORMS = ["absorbed", "expanded"]
V3 = c.Latent(128, 1536, 512, 128, 128, c.Rope(64, interleaved=True))


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def formed(form: str | None, cfg: c.Config = DEEPSEEK_V3) -> Any:
    """Return a random model, the same one for each form."""
    return tiny(replace(cfg, layers=tuple(replace(one, attn=replace(one.attn, form=form)) for one in cfg.layers)))


def batch_gap(form: str | None) -> float:
    """Return how far the batch, every segment in this form, is from each request alone and expanded."""
    expanded = formed("expanded")
    alone = {r: expanded(p[None])[0] for r, p in PROMPTS.items()}
    got = serve(formed(form), PROMPTS, PLAN)
    return max(far(got[r], alone[r]) for r in PROMPTS)


@pytest.mark.parametrize("form", [*FORMS, None])
def test_forms_agree_in_a_batch(form: str | None) -> None:
    assert batch_gap(form) < 1e-10


def lone_gap(form: str) -> float:
    """Return the gap of a padded batch, of packed documents and of decoding token by token to the expanded prefill."""
    expanded, model, tokens = formed("expanded"), formed(form), ids(2, 9)
    padding = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9])
    full, short = expanded(tokens), expanded(tokens[:1, 3:])
    padded = model(tokens, Step.plain(tokens, padding))
    packed = model(torch.cat([tokens[:1, 3:], tokens[1:]], 1), Step.packed([6, 9]))
    decoded = serve(model, {"a": tokens[1]}, [{"a": 1}] * 9)["a"]
    gaps = [far(model(tokens), full), far(padded[:1, 3:], short), far(padded[1:], full[1:])]
    return max(*gaps, far(packed[:, :6], short), far(packed[:, 6:], full[1:]), far(decoded, full[1]))


@pytest.mark.parametrize("form", FORMS)
def test_forms_agree_alone(form: str) -> None:
    assert lone_gap(form) < 1e-10


def test_without_a_query_rank() -> None:
    """V2-Lite's queries are projected straight from the token."""
    cfg = c.Config(97, 32, (c.Layer(replace(MLA, q_rank=None), c.Mlp(48)),) * 2)
    outs = [serve(formed(form, cfg), PROMPTS, PLAN)["a"] for form in FORMS]
    assert far(*outs) < 1e-10 and far(outs[0], tiny(cfg)(PROMPTS["a"][None])[0]) < 1e-10


def test_scaled_by_its_own_width_mutant() -> None:
    """The absorbed query has width C + R, and its scale is that of K + R."""
    right = latent.attend_sdpa

    def own(q: Tensor, *rest: Any) -> Tensor:
        return right(q, *rest[:-1], q.shape[-1] ** -0.5)

    with swapped(latent, "attend_sdpa", own):
        assert batch_gap("absorbed") > 1e-3 and lone_gap("absorbed") > 1e-3
        assert batch_gap("expanded") < 1e-10


def spied(run: Callable[[], object]) -> list[tuple[int, int, str]]:
    """Return T, S and the form of every segment that ran; the absorbed form has keys of C + R."""
    met, right = [], latent.attend_sdpa

    def spy(q: Tensor, k: Tensor, *rest: Any) -> Tensor:
        met.append((q.shape[1], k.shape[1], "absorbed" if q.shape[-1] == MLA.kv_rank + MLA.rope.width else "expanded"))
        return right(q, k, *rest)

    with swapped(latent, "attend_sdpa", spy):
        run()
    return met


def multiplied(form: str, t: int, s: int, spec: c.Latent) -> int:
    """Return the multiply-adds of one form, product by product."""
    h, k, r, w, rank = spec.heads, spec.key, spec.rope.width, spec.value, spec.kv_rank
    if form == "absorbed":
        move, scores, mix, back = t * h * k * rank, t * s * h * (rank + r), t * s * h * rank, t * h * rank * w
        return move + scores + mix + back
    keys, values, scores, mix = s * h * k * rank, s * h * w * rank, t * s * h * (k + r), t * s * h * w
    return keys + values + scores + mix


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_the_config_runs(form: str) -> None:
    """Every segment runs in it, and the record says so; without one the record names those that the counts chose."""
    model = formed(form)
    runs = (lambda: serve(model, PROMPTS, PLAN), lambda: model(ids(1, 40)))
    assert {met for run in runs for *_, met in spied(run)} == {form}
    for made, expected in ((model, form), (tiny("deepseek_v3"), "expanded")):
        with watch(made, only="layers.*.attn.z") as seen:
            made(ids(1, 40))
        assert {s.settings["form"] for s in seen} == {expected}
        flops = 2 * multiplied(expected, 40, 40, MLA)
        assert {s.flops for s in seen} == {flops}


def test_choice_by_counts() -> None:
    """Every segment runs in the form of fewer products, and both forms occur."""
    model = tiny("deepseek_v3")
    met = spied(lambda: (serve(model, PROMPTS, PLAN), model(ids(1, 40)), serve(model, {0: ids(40)}, [{0: 38}, {0: 1}, {0: 1}])))
    assert {form for *_, form in met} == set(FORMS)
    for t, s, form in met:
        assert form == min(FORMS, key=lambda f: (multiplied(f, t, s, MLA), f == "absorbed"))


@pytest.mark.parametrize(("t", "s", "form"), [(1, 1, "expanded"), (1, 4096, "absorbed"), (64, 4096, "absorbed"), (4096, 4096, "expanded")])
def test_choice_of_v3(t: int, s: int, form: str) -> None:
    sizes = (V3.heads, V3.key, V3.rope.width, V3.value, V3.kv_rank)
    counts = latent.products(t, s, *sizes)
    assert counts == tuple(multiplied(f, t, s, V3) for f in FORMS)
    assert (counts[0] < counts[1]) == (form == "absorbed")


def test_one_token_over_many() -> None:
    """For V3's step over 4,096 tokens expanding all keys and values costs 68.9 billion products, absorbing 0.59."""
    assert latent.products(1, 4096, 128, 128, 64, 128, 512) == (587_202_560, 68_887_248_896)


def test_the_cache_is_the_latent() -> None:
    """The cache holds rows of C and of R under each part, and nothing by head."""
    model, pages = tiny("deepseek_v3"), PagedCache(16, 4)
    serve(model, PROMPTS, PLAN[:2], pages)
    assert [type(part) for part in pages.pools] == [Latent] * 3 and not pages.memory
    for pools in pages.pools.values():
        assert [tuple(p.shape) for p in pools] == [(64, MLA.kv_rank), (64, MLA.rope.width)]
    assert pages.bytes_per_token() == 3 * (MLA.kv_rank + MLA.rope.width) * 8


def test_bytes_per_token_of_v3() -> None:
    """61 layers of V3's widths store 70,272 bytes a token in bfloat16, where heads would take 4,997,120."""
    cfg = c.Config(97, 7168, (c.Layer(V3, c.Mlp(64)),) * 61)
    with torch.device("meta"):
        model, pages = cast(build(cfg), torch.bfloat16), PagedCache(2, 16)
        step = Step.paged(pages, {"a": 5})
        model(torch.zeros(1, 5, dtype=torch.long), step)
    assert pages.bytes_per_token() == 61 * (512 + 64) * 2 == 70_272
    assert 61 * 128 * (V3.key + V3.rope.width + V3.value) * 2 == 4_997_120


def test_pages_hold_whole_latents() -> None:
    """The stored rows are the recorded ones: the latent after its norm, the shared key after its rotation."""
    model, pages = tiny("deepseek_v3"), PagedCache(16, 4)
    step = Step.paged(pages, {"a": 6})
    with watch(model) as seen:
        model(ids(1, 6), step)
    for i, (low, key) in enumerate(pages.pools.values()):
        slots = pages.allocators[None].slots("a", 0, 6)
        assert torch.equal(low[slots], seen[f"layers.{i}.attn.latent"].value[0])
        assert torch.equal(key[slots], seen[f"layers.{i}.attn.k_shared"].value[0])


def test_weights_fit_their_axes() -> None:
    """K is the content width in every weight."""
    model = tiny("deepseek_v3")
    sizes = {"H": 4, "K": MLA.key, "R": MLA.rope.width, "W": MLA.value, "C": MLA.kv_rank, "Q": MLA.q_rank, "D": DEEPSEEK_V3.width}
    checked = 0
    for part in model.modules():
        if isinstance(part, Latent):
            for name, dims in part.axes.items():
                if isinstance(weight := getattr(part, name, None), nn.Linear):
                    bind(name, dims, weight.weight.shape, dict(sizes))
                    checked += 1
    assert checked == 15
    with pytest.raises(ShapeError):
        bind("q_b", "(H K) Q", model.layers[0].attn.q_b.weight.shape, dict(sizes))
