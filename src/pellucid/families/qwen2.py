"""Qwen2, Qwen2.5, QwQ (arXiv 2407.10671, 2412.15115): Llama's block with biases of q, k and v, and optional windows in some layers."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.fixed("attention_bias", True)
    attn = replace(llama.attention(hf, bias=True), out_bias=False)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    windows = qwen3.windows(hf, hf.integer("num_hidden_layers", high=100_000))
    return llama.decoder(hf, tuple(c.Layer(replace(attn, window=w), mlp) for w in windows))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="Qwen2ForCausalLM")
