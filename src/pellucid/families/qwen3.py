"""Qwen3 (arXiv 2505.09388): Llama's block with a norm on every head's query and key, and optional windows in some layers."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

KINDS = ("full_attention", "sliding_attention")


def windows(hf: Fields, layers: int) -> list[int | None]:
    """Return each layer's window: by `layer_types`, or in old files from `max_window_layers` on."""
    used = hf.flag("use_sliding_window", False)
    window = hf.maybe("sliding_window", low=int(used), stated=used)
    first = hf.integer("max_window_layers", 28, low=0)
    if hf.get("layer_types", None) is None:
        return [window if used and i >= first else None for i in range(layers)]
    kinds = hf.texts("layer_types", layers, KINDS)
    if KINDS[1] in kinds and not used:
        raise hf.fault("use_sliding_window", used, "true")
    return [hf.integer("sliding_window") if kind == KINDS[1] else None for kind in kinds]


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    attn, layers = llama.attention(hf, qk_norm=True, head=128), hf.integer("num_hidden_layers", high=100_000)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.decoder(hf, tuple(c.Layer(replace(attn, window=w), mlp) for w in windows(hf, layers)))


QK_NORMS = tuple(Rule(f"model.layers.{{i}}.self_attn.{n}_norm.*", f"layers.{{i}}.attn.{n}_norm.*") for n in "qk")
RULES = (*llama.RULES, *QK_NORMS)
FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Qwen3ForCausalLM")
