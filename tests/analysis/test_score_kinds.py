"""Additive scores against a slow loop, their work against formulas; a layer without tanh, whose queries agree, is seen."""

import pytest
import torch

import pellucid
from pellucid.analysis import score_kinds as kinds
from pellucid.analysis.independence import rows_of
from pellucid.batch.step import Step
from pellucid.tracing import watch


@pytest.fixture(scope="module", params=["capitals", "capitals-llama"])
def run(request: pytest.FixtureRequest) -> pellucid.Trace:
    return pellucid.trace(pellucid.load(f"pellucid/{request.param}", dtype="float64"), "The capital of France is")


def test_a_slow_loop(run: pellucid.Trace) -> None:
    x, layer = rows_of(run), kinds.additive(run.runner)
    with torch.no_grad(), watch(layer) as seen:
        layer(x, Step.plain(torch.zeros(1, 5, dtype=torch.long)))
    q, k, v, w = (*(seen[name].value[0] for name in "qkv"), layer.get_parameter("w.weight")[0])
    groups = q.shape[1] // k.shape[1]
    for t, h in ((0, 0), (4, 3)):
        scores = torch.stack([w @ torch.tanh(q[t, h] + k[s, h // groups]) for s in range(t + 1)])
        assert torch.allclose(seen["scores"].value[0, h, t, : t + 1], scores, atol=1e-12)
        assert torch.allclose(seen["z"].value[0, t, h], scores.softmax(0) @ v[: t + 1, h // groups], atol=1e-12)


def test_work(run: pellucid.Trace) -> None:
    x, cfg = rows_of(run), run.runner.config
    with torch.no_grad():
        product, bent = (kinds.score_work(make(run.runner), x) for make in (kinds.dot, kinds.additive))
    heads, width = cfg.layers[0].attn.heads, cfg.layers[0].attn.width
    pairs = 5 * 5 * heads
    assert product.given == product.made == bent.given == bent.made == [1, 5, cfg.width]
    assert product.flops == bent.flops and product.kept == pairs * 8 and product.pair == 1 and product.elementwise == 0
    assert (bent.elementwise, bent.pair, bent.kept) == (2 * pairs * width, 2 * width + 1, pairs * (2 * width + 1) * 8)
    assert kinds.kept_by_length(kinds.dot(run.runner), x, [2, 7]) == [2 * 2 * heads * 8, 7 * 7 * heads * 8]


def test_without_tanh_queries_agree(run: pellucid.Trace) -> None:
    x = rows_of(run)
    with torch.no_grad():
        bent, straight = (kinds.query_gap(kinds.score_work(kinds.additive(run.runner, b), x)) for b in (True, False))
    assert straight < 1e-10 and bent > 0.1


def test_no_row_sees_a_later_one(run: pellucid.Trace) -> None:
    x, layer = rows_of(run), kinds.additive(run.runner)
    step = Step.plain(torch.zeros(1, 5, dtype=torch.long))
    moved = x.clone()
    moved[0, 4] *= 2
    with torch.no_grad():
        gaps = (layer(x, step) - layer(moved, step)).abs().amax(-1)[0]
    assert float(gaps[:4].max()) < 1e-12 and float(gaps[4]) > 1e-3
