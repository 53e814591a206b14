"""InternLM3 8B (Shanghai AI Laboratory, 2025): Llama, whose files call its biases `qkv_bias` and `bias`."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def bias(hf: Fields, name: str, published: str) -> bool:
    """Return a flag that published files have as `published` and transformers' own as `name`; both must agree."""
    value = hf.flag(published, hf.flag(name, False))
    hf.fixed(name, value)
    return value


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    own, mlp_bias = bias(hf, "attention_bias", "qkv_bias"), bias(hf, "mlp_bias", "bias")
    # transformers has one setting for all of them
    hf.relate(own == mlp_bias, "qkv_bias == bias (attention_bias == mlp_bias)", qkv_bias=own, bias=mlp_bias)
    attn = replace(llama.attention(hf, head=128), bias=own, out_bias=own)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=mlp_bias)
    return llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="InternLM3ForCausalLM")
