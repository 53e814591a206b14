"""PyTorch's attention with a model's weights, and with two of them swapped."""

import pytest

import pellucid
from pellucid.analysis.library_attention import library_attention, library_gaps, thirds
from pellucid.analysis.needs import TWIN, unmet


@pytest.mark.parametrize("name", ["capitals", "capitals-bert"])
def test_same_output_and_patterns(name: str) -> None:
    model = pellucid.load(f"pellucid/{name}", dtype="float64")
    run = pellucid.trace(model, "The capital of France is")
    assert unmet(TWIN, model.config) is None
    assert max(library_gaps(run, "layers.1.attn", library_attention(model, "layers.1.attn"))) < 1e-10
    out, each, _ = library_gaps(run, "layers.1.attn", library_attention(model, "layers.1.attn", ("q", "v", "k")))
    assert out > 1e-3 and each > 1e-3
    assert library_gaps(run, "layers.1.attn", library_attention(model, "layers.0.attn"))[0] > 1e-3


def test_thirds_by_hand() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float64")
    q, v = (model.weight(f"layers.0.attn.{name}.weight") for name in "qv")
    (first, gaps), *_, (last, _) = thirds(library_attention(model, "layers.0.attn"), {"q": q, "v": v})
    assert (first, last) == ("0 … 127", "256 … 383")
    assert gaps == {"q": 0.0, "v": pytest.approx(float((q - v).abs().max()))}


@pytest.mark.parametrize("name", ["capitals-llama", "capitals-deepseek"])
def test_other_kinds_have_no_twin(name: str) -> None:
    assert unmet(TWIN, pellucid.load(f"pellucid/{name}", device="meta").config)
