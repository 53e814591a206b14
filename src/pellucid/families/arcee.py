"""Arcee AFM (2025): Llama's block with YaRN, and a feed-forward part without a gate that squares what it keeps."""

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    act, bias = hf.choice("hidden_act", ACTS, "relu2"), hf.flag("mlp_bias", False)
    layer = c.Layer(llama.attention(hf), c.Mlp(hf.integer("intermediate_size"), act, gated=False, bias=bias))
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="ArceeForCausalLM")
