"""StableLM 3B and StableLM 2 1.6B (arXiv 2402.17834): Llama with LayerNorms, of which a quarter of each head turns."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.fixed("qk_layernorm", False)  # a norm for each head of its own, in the 12B model alone
    hf.integer("num_key_value_heads")  # required: transformers takes 32 where it is missing
    attn = replace(llama.attention(hf, part=0.25), bias=hf.flag("use_qkv_bias", False))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    order = "parallel" if hf.flag("use_parallel_residual", False) else "pre"
    layers = (c.Layer(attn, mlp, order=order),) * hf.integer("num_hidden_layers", high=100_000)
    hf.read |= {"hidden_dropout"}
    return replace(llama.decoder(hf, layers), norm="layer", eps=hf.number("layer_norm_eps", 1e-5))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="StableLmForCausalLM")
