"""Curves of activations and counts of silent neurons, by hand."""

import math

import pytest

import pellucid
from pellucid.analysis.silence import bend, curve, places, silence


def test_curves_by_hand() -> None:
    assert places(-1, 1, 3) == [-1.0, 0.0, 1.0]
    assert curve("relu", [-2.0, 3.0]) == [0.0, 3.0]
    assert curve("silu", [2.0]) == pytest.approx([2 / (1 + math.exp(-2))], abs=1e-12)
    assert curve("gelu", [1.0]) == pytest.approx([0.5 * (1 + math.erf(1 / math.sqrt(2)))], abs=1e-12)


@pytest.mark.parametrize("act", ["relu", "gelu", "silu"])
def test_bend(act: str) -> None:
    at = places(-4, 4, 17)
    straight, most = bend(act, at, at[::-1])
    assert straight < 1e-12 and most == pytest.approx(2 * curve(act, [4.0])[0] - 4, abs=1e-12)
    assert bend(act, at, at)[0] == 4.0  # f(x) - f(x) - x


def test_silence_by_hand() -> None:
    model = pellucid.variant(pellucid.load("pellucid/capitals", dtype="float32"), {"layers.*.ffn.act": "relu"})
    run = pellucid.trace(model, "Paris", edit=[pellucid.put("layers.0.ffn.up", -1.0)])
    rows = len(run.ids)
    own = silence(run)
    zeros = sum(int((run[f"layers.{i}.ffn.up"].value <= 0).sum()) for i in range(4))
    assert own.of == 4 * 512 * rows and own.zero == own.negative == zeros >= 512 * rows
    assert silence(pellucid.trace(model, "Paris", edit=[pellucid.put("layers.0.ffn.up", 0.005)])).near >= 512 * rows
