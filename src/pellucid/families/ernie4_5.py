"""ERNIE 4.5 (2025), its dense models: Llama's block with rotary pairs side by side, and biases everywhere or nowhere."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    bias = hf.flag("use_bias", False)
    hf.fixed("attention_bias", bias)
    hf.read |= {"compression_ratio"}  # of a training that transformers' class does not know either
    attn = replace(llama.attention(hf, head=128, theta=500_000.0, interleaved=True), bias=bias, out_bias=bias)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=bias)
    cfg = llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)
    return replace(cfg, tied=hf.flag("tie_word_embeddings", True))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="Ernie4_5ForCausalLM")
