"""Shuffled words: a model without positions follows the shuffle of its prompt, whatever it knows of positions by."""

import pytest

from pellucid import config as c
from pellucid.analysis.needs import UNPLACED, unmet
from pellucid.analysis.shuffle import shuffled, without_positions
from pellucid.api.model import load, specimens
from pellucid.api.variant import variant
from tiny import DECODERS

PROMPT = "The capital of France is"
FOLLOWING = [name for name in specimens() if "bert" not in name and "t5" not in name and "deepseek" not in name]


@pytest.mark.parametrize("name", FOLLOWING)
def test_the_shuffle_is_followed(name: str) -> None:
    """All rows, where all see each other; with any position left, or under a causal mask, they differ."""
    model = load(name, dtype="float64")
    bare = variant(model, without_positions(model.config))
    assert shuffled(bare, PROMPT, causal=False).gap < 1e-10
    assert shuffled(model, PROMPT, causal=False).gap > 1e-3 and shuffled(bare, PROMPT, causal=True).gap > 1e-3
    last = list(without_positions(model.config).items())[-1]
    rest = dict(list(without_positions(model.config).items())[:-1])
    assert shuffled(variant(model, rest), PROMPT, causal=False).gap > 1e-3, last


def test_windows_and_chunks_are_positions() -> None:
    attn = c.Attention(4, 2, 8, c.Rope(8), window=3)
    cfg = c.Config(23, 16, (c.Layer(attn, c.Mlp(32)), c.Layer(c.Attention(4, 2, 8, chunk=4), c.Mlp(32))), True, 1e-5, "rms", 16)
    assert without_positions(cfg) == {
        "positions": None, "layers.0.attn.rope": None, "layers.0.attn.window": None, "layers.1.attn.chunk": None,
    }  # fmt: skip


def test_a_rotary_key_in_the_matrices_stays() -> None:
    assert [name for name, cfg in DECODERS.items() if unmet(UNPLACED, cfg)] == ["deepseek_v3"]
