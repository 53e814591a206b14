"""Code World Model 32B (Meta, 2025): Llama 3 with windows in three of four layers."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import fill

SCALED = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # of a file that says nothing


def config(hf: Fields) -> c.Config:
    fill(hf, SCALED)
    hf.fixed("attention_bias", False)
    hf.maybe("num_key_value_heads", stated=True)
    attn, window = llama.attention(hf, head=128, theta=1_000_000.0), hf.length("sliding_window", 8192)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    layers = hf.integer("num_hidden_layers", high=100_000)
    kinds = [gemma2.SLIDING if i % 4 else gemma2.FULL for i in range(layers)]
    if "layer_types" in hf:
        kinds = hf.texts("layer_types", layers, gemma2.KINDS)
    windows = [window if kind == gemma2.SLIDING else None for kind in kinds]
    return llama.decoder(hf, tuple(c.Layer(replace(attn, window=one), mlp) for one in windows), eps=1e-5)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="CwmForCausalLM")
