"""Helium (Kyutai, 2025): Llama's block with rotary pairs side by side, and an output of attention that never has a bias."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    attn = replace(llama.attention(hf, head=128, theta=100_000.0, interleaved=True), out_bias=False)
    width, wide = hf.integer("hidden_size"), attn.heads * attn.width
    hf.relate(wide == width, "num_attention_heads * head_dim == hidden_size", heads_are=wide, hidden_size=width)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    return llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-8)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="HeliumForCausalLM")
