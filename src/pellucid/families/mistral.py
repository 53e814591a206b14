"""Mistral 7B, Nemo, Small (arXiv 2310.06825): Llama's block with a sliding window in every layer if the file has one."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def attention(hf: Fields, theta: float = 10_000.0) -> c.Attention:
    """Return Llama's attention without biases, with the window that the file states; null is none."""
    hf.maybe("num_key_value_heads", stated=True)
    hf.fixed("attention_bias", False)
    return replace(llama.attention(hf, theta=theta), window=hf.maybe("sliding_window", stated=True))


def config(hf: Fields) -> c.Config:
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.decoder(hf, (c.Layer(attention(hf), mlp),) * hf.integer("num_hidden_layers", high=100_000))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="MistralForCausalLM")
