"""Numbers of the catalogue's models, against their configurations."""

import pytest

from pellucid import catalog
from pellucid.analysis.catalogue import Biases, biases, built, parameters_of, sizes_of, stored, uncompressed


def test_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2 has biases in attention alone; the specimen of BERT has one at its head too."""
    qwen = biases("qwen2-")
    assert (qwen.models, qwen.head, qwen.attention) == (sum(n.startswith("qwen2-") for n in catalog.models()), 0, qwen.models)
    monkeypatch.setattr(catalog, "models", lambda: {f"pellucid/{n}": {"id": n, "name": n} for n in ("capitals-bert", "capitals-llama")})
    assert biases("pellucid/") == Biases(2, 1, 1)


def test_sizes_are_those_of_the_built_module() -> None:
    (one,) = sizes_of(["gpt2-small"])
    assert (one.layers, one.width, one.heads, one.published) == (12, 768, 12, "117M")
    assert one.total == one.active == built("gpt2-small") == 50_257 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768
    assert int(parameters_of("gpt2-small", {"n_layer": 13})["parameters.total"]) != built("gpt2-small")


def test_cache_by_hand() -> None:
    """Keys and values of all heads in all layers, two bytes each; of a latent 512 numbers and a rotary key of 64."""
    llama, latent = stored("llama-2-7b"), stored("deepseek-v3")
    assert (llama.kind, llama.token, llama.cache(10)) == ("MHA", 32 * 2 * 32 * 128 * 2, 10 * 524_288)
    assert llama.token * (llama.even - 1) < llama.weights <= llama.token * llama.even
    assert (latent.kind, latent.token) == ("MLA", 61 * (512 + 64) * 2)
    assert uncompressed("deepseek-v3") == 61 * 128 * (128 + 64 + 128) * 2 == 4_997_120 and uncompressed("llama-2-7b") == 0
