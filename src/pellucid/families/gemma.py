"""Gemma (arXiv 2403.08295): Llama's block with norms that count from 1, wide heads, a tied table whose rows are times √width."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields

LEGACY = ACTS | {"gelu": "gelu_tanh"}  # the first files say gelu and mean its approximation


def same(hf: Fields, name: str, act: str, acts: dict[str, str]) -> None:
    """Refuse a second field for the activation that names another one."""
    hf.fixed(name, *(n for n, meant in acts.items() if meant == act))


def attention(hf: Fields, **turn: Any) -> c.Attention:
    """Return Llama's attention; a head is 256 wide without `head_dim`, and `num_key_value_heads` is required."""
    hf.maybe("num_key_value_heads", stated=True)
    return llama.attention(hf, head=256, **turn)


def decoder(hf: Fields, layers: tuple[c.Layer, ...]) -> c.Config:
    """Return the Config around `layers`, as every Gemma has it."""
    cfg = llama.decoder(hf, layers)
    return replace(cfg, tied=hf.flag("tie_word_embeddings", True), norm="rms offset", embed_scale=cfg.width**0.5)


def config(hf: Fields) -> c.Config:
    act = hf.choice("hidden_act", LEGACY, "gelu_pytorch_tanh")
    same(hf, "hidden_activation", act, LEGACY)
    layer = c.Layer(attention(hf), c.Mlp(hf.integer("intermediate_size"), act))
    return decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="GemmaForCausalLM")
