"""Seed-OSS (ByteDance, 2025): Llama's block with biases of queries, keys and values, and a switch of its own for the output's."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.read |= {"residual_dropout"}
    attn = replace(llama.attention(hf, bias=True, head=128), out_bias=hf.flag("attention_out_bias", False))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    return llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="SeedOssForCausalLM")
