"""Gemma (arXiv 2403.08295): Llama's block with norms that count from 1, wide heads, a tied table whose rows are times √width."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.fields import Fields

ARCHITECTURE = "GemmaForCausalLM"

LEGACY = ACTS | {"gelu": "gelu_tanh"}  # the first files say gelu and mean its approximation


def same(hf: Fields, name: str, act: str, acts: dict[str, str]) -> None:
    """A second field for the activation may be there, and says the same."""
    hf.fixed(name, *(n for n, meant in acts.items() if meant == act))


def attention(hf: Fields, **turn: Any) -> c.Attention:
    """Llama's, but a head is 256 wide where no field says otherwise, and the number of key heads is always told."""
    hf.maybe("num_key_value_heads", stated=True)
    return llama.attention(hf, head=256, **turn)


def whole(hf: Fields, layers: tuple[c.Layer, ...]) -> c.Config:
    """The model around the layers of every Gemma."""
    cfg = llama.whole(hf, layers)
    return replace(cfg, tied=hf.flag("tie_word_embeddings", True), norm="rms offset", embed_scale=cfg.width**0.5)


def config(hf: Fields) -> c.Config:
    act = hf.choice("hidden_act", LEGACY, "gelu_pytorch_tanh")
    same(hf, "hidden_activation", act, LEGACY)
    layer = c.Layer(attention(hf), c.Mlp(hf.whole("intermediate_size"), act))
    return whole(hf, (layer,) * hf.whole("num_hidden_layers", high=100_000))


RULES, IGNORED = llama.RULES, llama.IGNORED
