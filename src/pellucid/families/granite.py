"""Granite 3 (IBM, 2024): Llama's block with four multipliers: of the embedding, the scores, each part's output, and the logits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def attention(hf: Fields) -> c.Attention:
    """Return Llama's attention, whose scores have a factor of their own instead of 1/√width."""
    return replace(llama.attention(hf), scale=hf.number("attention_multiplier", 1.0))


def multiplied(hf: Fields, ffn: c.Mlp | c.Moe, mixers: Sequence[c.AnyAttention] | None = None) -> c.Config:
    """Return the Config of blocks with this feed-forward part, and the multipliers around them.

    mixers: what mixes the rows of each layer; None: attention in all.
    """
    if mixers is None:
        mixers = (attention(hf),) * hf.integer("num_hidden_layers", high=100_000)
    gain = hf.number("residual_multiplier", 1.0)
    cfg = llama.decoder(hf, tuple(c.Layer(mixer, ffn, gain=gain) for mixer in mixers))
    around: dict[str, Any] = {"embed_scale": hf.number("embedding_multiplier", 1.0), "logit_factor": 1 / hf.number("logits_scaling", 1.0)}
    return replace(cfg, **around)


def config(hf: Fields) -> c.Config:
    bias = hf.flag("mlp_bias", False)
    return multiplied(hf, c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=bias))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="GraniteForCausalLM")
