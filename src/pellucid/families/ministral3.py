"""Ministral 3 (Mistral AI, December 2025): Mistral with YaRN, whose queries grow behind the context of its first training."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import fill, settings

GROWN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}  # of a file that says nothing


def temper(hf: Fields) -> c.Temper | None:
    """Return how queries grow, from the object with the rotary settings, where both numbers are required; a factor of 0 is none."""
    scaling = settings(hf)
    assert scaling is not None
    scaling.read |= {"max_position_embeddings"}  # the field beside it says the same
    floor, scale = scaling.integer("original_max_position_embeddings"), scaling.number("llama_4_scaling_beta", above=-1)
    return c.Temper(floor, scale, first=0) if scale else None


def config(hf: Fields) -> c.Config:
    fill(hf, GROWN)
    hf.fixed("attention_bias", False)
    hf.maybe("num_key_value_heads", stated=True)
    attn = replace(llama.attention(hf, head=128), window=hf.maybe("sliding_window"), temper=temper(hf))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="Ministral3ForCausalLM")
