"""The work of MLA's two forms by their formulas, and DeepSeek-V3's sizes."""

import pytest

import pellucid
from pellucid.analysis.latent_forms import attention_work, grown_bytes, latent_sizes, stages, stored_bytes


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_work_by_hand(form: str) -> None:
    model = pellucid.variant(pellucid.load("pellucid/capitals-deepseek", dtype="float64"), {"layers.*.attn.form": form})
    run = pellucid.trace(model, "The capital of France is", steps=2)
    h, k, r, w, c = 4, 16, 8, 24, 32
    for step, (t, s) in enumerate(((5, 5), (1, 6))):
        grown, over = (s, k + r + w) if form == "expanded" else (t, c + r + c)
        assert attention_work(run, step) == 4 * 2 * h * (grown * c * (k + w) + t * s * over)
        assert grown_bytes(run, step) == 4 * 8 * h * (s * (k + w) if form == "expanded" else t * (c + c))
        assert stored_bytes(run, step) == 4 * 8 * s * (c + r)
        made = [(s, h, k), (s, h, w)] if form == "expanded" else [(t, h, c), (t, h, c)]
        own = stages(run, step)
        assert [one.sizes for one in own if one.grown] == made
        assert own[0].sizes == (s, c + r) and own[-1].sizes == run.all("layers.0.attn.z")[step].shape[1:] == (t, h, w)
        assert (h, t, s) in [one.sizes for one in own if not one.grown] and own[0].shape == f"{s} × {c + r}"


def test_sizes_of_the_large_model() -> None:
    sizes = latent_sizes("deepseek-v3")
    assert sizes.matrices["q_a"] == (7168, 1536) and sizes.matrices["q_b"] == (1536, 24_576) and sizes.matrices["kv_a"] == (7168, 576)
    assert (sizes.stored, sizes.heads) == (61 * (512 + 64) * 2, 4_997_120)
