"""Ministral 8B (Mistral AI, 2024): Mistral with windows in the layers that its file names."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama, mistral
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    attn, layers = mistral.attention(hf), hf.integer("num_hidden_layers", high=100_000)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    sliding = [attn.window is not None] * layers
    if "layer_types" in hf:
        sliding = [kind == gemma2.SLIDING for kind in hf.texts("layer_types", layers, gemma2.KINDS)]
    hf.relate(attn.window is not None or not any(sliding), "sliding_window where a layer slides", sliding_window=attn.window)
    return llama.decoder(hf, tuple(c.Layer(replace(attn, window=attn.window if near else None), mlp) for near in sliding))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="MinistralForCausalLM")
