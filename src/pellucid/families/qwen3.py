"""Qwen3 (arXiv 2505.09388): Llama's block with a norm on every head's query and key, and windows in some layers where asked."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

KINDS = ("full_attention", "sliding_attention")


def windows(hf: Fields, layers: int) -> list[int | None]:
    """The window of each layer: by `layer_types`, or in old files from `max_window_layers` on."""
    used = hf.flag("use_sliding_window", False)
    window = hf.maybe("sliding_window") if used else None
    first = hf.whole("max_window_layers", layers, low=0)
    hf.read |= {"sliding_window"}
    if "layer_types" in hf:
        return [window if kind == KINDS[1] else None for kind in hf.texts("layer_types", layers, KINDS)]
    return [window if i >= first else None for i in range(layers)]


def config(hf: Fields) -> c.Config:
    attn, layers = llama.attention(hf, qk_norm=True), hf.whole("num_hidden_layers", high=100_000)
    mlp = c.Mlp(hf.whole("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.whole(hf, tuple(c.Layer(replace(attn, window=w), mlp) for w in windows(hf, layers)))


RULES = (*llama.RULES, *(Rule(f"model.layers.{{i}}.self_attn.{n}_norm.*", f"layers.{{i}}.attn.{n}_norm.*") for n in "qk"))
IGNORED = llama.IGNORED
