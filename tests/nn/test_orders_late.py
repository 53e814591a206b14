"""Shapes of 2022 to 2025 that the first six families lack: chunks, queries scaled by position, shares before experts, keys that an indexer
chooses, scores by distance, norms without a bias; and the pooler of an encoder without a head.

The tests of every family's terms, records, batches and generation run on them too.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import test_generate
import tiny
from covering import FULL
from pellucid import config as c
from pellucid.batch.mask import Mask
from pellucid.counting import Setting, counted
from pellucid.counting.bill import pairs
from pellucid.families import known
from pellucid.nn import indexer, latent
from pellucid.nn.attention import Attention
from pellucid.nn.moe import InputWeightedMoe, Moe
from pellucid.nn.norm import PlainLayerNorm
from pellucid.ops import choose
from pellucid.watching.watch import watch
from test_orders import ASKED

V, D = tiny.V, tiny.D
CHUNKED = c.Attention(4, 2, 16, c.Rope(16, interleaved=True), chunk=4, qk_rms=True)
STILL = c.Attention(4, 2, 16, temper=c.Temper(3, 0.7))
FIRST = c.Moe(4, 2, 16, shared=16, normalised=False, corrected=False, share_first=True)
CHOOSING = c.Latent(4, 24, 20, 16, 12, c.Rope(8, interleaved=True), index=c.Index(4, 12, 3))
FAR = c.Attention(4, 4, 8, distances=True)
PALM = c.Layer(c.Attention(4, 1, 8, c.Rope(8)), c.Mlp(48), order="parallel")

SHAPES = {
    "llama4_text": c.Config(V, D, (c.Layer(CHUNKED, FIRST), c.Layer(STILL, tiny.MLP))),
    "deepseek_v32": c.Config(V, D, (c.Layer(CHOOSING, tiny.MLP), c.Layer(CHOOSING, tiny.EXPERTS)), eps=1e-6),
    "chinchilla": c.Config(V, D, (c.Layer(FAR, c.Mlp(48, "gelu", gated=False)),) * 2, True),
    "palm": c.Config(V, D, (PALM,) * 2, True, norm="layer, no bias", logit_scale=D**-0.5),
}
HEARS = c.Attention(4, 4, 8, bias=True, out_bias=True, causal=False)
POOLED = c.Config(
    V, D, (c.Layer(HEARS, c.Mlp(48, "gelu", gated=False, bias=True), order="post"),) * 2, norm="layer", positions=64, final_norm=False,
    head=False, pooler=True,
)  # fmt: skip
OF_ROWS = ("terms", "a forgotten summand", "sources", "operands", "meta", "sources on meta")
OF_FAMILIES = {"explained", "explained cells"}  # no files are known of the others
ASKING = [(s, q) for s in SHAPES for q in ASKED if q not in OF_FAMILIES or s in known()] + [("pooled", q) for q in OF_ROWS]


@pytest.mark.parametrize(("shape", "question"), ASKING if FULL else ASKING[::2])
@pytest.mark.quick(11)
def test_what_is_asked_of_every_family(shape: str, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, (SHAPES | {"pooled": POOLED})[shape])
    with torch.no_grad():
        ASKED[question](shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.quick(4)
def test_one_request_goes_by_its_plan(shape: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    test_generate.test_one_request_goes_by_its_plan(shape, dtype)


def logits(shape: str) -> Tensor:
    with torch.no_grad():
        return tiny.tiny(SHAPES[shape])(tiny.ids(2, 11))  # type: ignore[no-any-return]


MUTANTS: list[tuple[str, tuple[Any, str, Any]]] = [
    ("llama4_text", (Attention, "mask", lambda self, step: self.base)),
    ("llama4_text", tiny.without(Attention, "rms_eps")),
    ("llama4_text", tiny.without(Attention, "temperature")),
    ("llama4_text", (InputWeightedMoe, "route", Moe.route)),
    ("deepseek_v32", (latent, "limited", lambda mask, kv_cache, chosen: mask)),
    ("deepseek_v32", (indexer.ops, "choose", lambda q, w, kv_cache, mask, most: choose(q, -w, kv_cache, mask, most))),
    ("deepseek_v32", (Mask, "of", lambda self, segment: self)),
    ("chinchilla", tiny.without(Attention, "distance")),
    ("palm", (PlainLayerNorm, "forward", lambda self, x: x)),
]


@pytest.mark.parametrize(("shape", "mutant"), MUTANTS, ids=lambda x: x if isinstance(x, str) else x[1])
def test_mutants_are_seen(shape: str, mutant: tuple[Any, str, Any]) -> None:
    """Each mutant is another model, which the same questions detect."""
    right = logits(shape)
    with tiny.swapped(*mutant):
        assert tiny.far(logits(shape), right) > 1e-3


# By hand


def test_scores_by_distance() -> None:
    """One layer's scores are q · (k + r), with r the key of the distance's sinusoid."""
    model = tiny.tiny(replace(SHAPES["chinchilla"], layers=SHAPES["chinchilla"].layers[:1]))
    with torch.no_grad(), watch(model, inside="reference") as seen:
        model(tiny.ids(1, 7))
    q, k = (seen[f"layers.0.attn.{n}"].value[0] for n in "qk")
    scores, weight = seen["layers.0.attn.scores"].value[0], model.layers[0].attn.distance.weight.detach().unflatten(0, (4, 8))
    rates = 10_000.0 ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    for t in range(7):
        for s in range(t + 1):
            wave = torch.cat([((t - s) * rates).sin(), ((t - s) * rates).cos()])
            for h in range(4):
                wanted = q[t, h] @ (k[s, h] + weight[h] @ wave) * 8**-0.5
                assert abs(float(scores[h, t, s] - wanted)) < 1e-6  # a table of sinusoids has float32's digits


def test_a_norm_without_a_bias() -> None:
    x, norm = torch.randn(3, 5, D, dtype=torch.float64), PlainLayerNorm(D, 1e-5).double()
    norm.weight.data = torch.randn(D, dtype=torch.float64)
    assert tiny.far(norm(x), F.layer_norm(x, (D,), norm.weight, None, 1e-5)) < 1e-12


def test_an_indexer_keeps_the_best() -> None:
    """Each row keeps the best three keys of those it may see; of equal scores the earlier."""
    model = tiny.tiny(SHAPES["deepseek_v32"])
    with torch.no_grad(), watch(model) as seen:
        model(tiny.ids(2, 11))
    for i in range(2):
        scores, chosen = (seen[f"layers.{i}.attn.indexer.{n}"].value for n in ("scores", "chosen"))
        pattern = seen[f"layers.{i}.attn.pattern"].value
        for b in range(2):
            for t in range(11):
                best = sorted(range(t + 1), key=lambda s: (-float(scores[b, t, s]), s))[:3]
                assert chosen[b, t].nonzero().flatten().tolist() == sorted(best)
                assert (pattern[b, :, t] > 0).nonzero()[:, 1].unique().tolist() == sorted(best)


# Counted


@pytest.mark.parametrize("chunk", [1, 4, 9, 40])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("rows", "before"), [(1, 0), (7, 0), (1, 12), (5, 3), (20, 0), (1, 7)])
def test_pairs_of_chunks_are_those_of_the_mask(chunk: int, window: int | None, rows: int, before: int) -> None:
    layer = c.Layer(c.Attention(4, 2, 8, window=window, chunk=chunk), tiny.MLP)
    q, k = torch.arange(before, before + rows)[:, None], torch.arange(before + rows)
    mask = (k <= q) & (q // chunk == k // chunk) & (q - k < (window or 10**6))
    assert pairs(layer, rows, before) == int(mask.sum())
    assert layer.attn.rows_kept(before + rows) == min(before + rows, chunk, window or chunk)


def test_an_indexer_is_counted_as_what_it_reads_and_stores() -> None:
    """The indexer scores every key and attention reads three; both caches grow."""
    bill = counted(SHAPES["deepseek_v32"], "tiny", "deepseek_v32", Setting(context=40, cache="float32"))
    assert int(bill["cache.bytes_per_token"]) == 2 * (20 + 8 + 12) * 4
    assert int(bill["cache.bytes"]) == 40 * int(bill["cache.bytes_per_token"])
    assert int(bill["flops.decode.layers.0.attn.indexer"]) == 2 * 41 * 4 * (12 + 1)
    layer = bill.layer("layers.0")
    assert layer.attn.limits == (3, None) and pairs(layer, 1, 40) == 3 and pairs(bill.viewer("layers.0.attn.indexer"), 1, 40) == 41
    idle = int(bill["flops.decode"]) - int(bill["flops.decode_causal"])
    attn = int(bill["flops.decode.layers.0.attn"])
    assert idle == sum(n - int(n * 3 / 41) for n in (attn, int(bill["flops.decode.layers.1.attn"])))


def test_keys_of_distances_are_made_once() -> None:
    """A step computes the key of its own distance only: one more product a token, and a second with every query."""
    bill = counted(SHAPES["chinchilla"], "tiny", "tiny", Setting(context=40))
    plain = replace(SHAPES["chinchilla"], layers=(c.Layer(replace(FAR, distances=False), SHAPES["chinchilla"].layers[0].ffn),) * 2)
    other = counted(plain, "tiny", "tiny", Setting(context=40))
    assert int(bill["parameters.total"]) - int(other["parameters.total"]) == 2 * D * 32
    assert int(bill["flops.decode"]) - int(other["flops.decode"]) == 2 * 2 * 32 * (D + 41)
