"""Numbers of the catalogue's models, against their configurations."""

import pytest

from pellucid import catalog
from pellucid.analysis.catalogue import Biases, biases


def test_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2 has biases in attention alone; the specimen of BERT has one at its head too."""
    qwen = biases("qwen2-")
    assert (qwen.models, qwen.head, qwen.attention) == (sum(n.startswith("qwen2-") for n in catalog.models()), 0, qwen.models)
    monkeypatch.setattr(catalog, "models", lambda: {f"pellucid/{n}": {"id": n, "name": n} for n in ("capitals-bert", "capitals-llama")})
    assert biases("pellucid/") == Biases(2, 1, 1)
