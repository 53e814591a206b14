"""Qwen3-30B-A3B, Qwen3-235B-A22B (arXiv 2505.09388): Qwen3's attention, and experts chosen by a softmax."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, qwen2_moe, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def window(hf: Fields) -> int | None:
    """Return the window of all layers; transformers has no layer without it here, so `max_window_layers` other than 0 is refused."""
    if not hf.flag("use_sliding_window", False):
        hf.read |= {"sliding_window", "max_window_layers"}
        return None
    hf.fixed("max_window_layers", 0)
    return hf.integer("sliding_window")


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    attn = replace(llama.attention(hf, qk_norm=True), window=window(hf))
    return llama.decoder(hf, qwen2_moe.layers(hf, [attn] * hf.integer("num_hidden_layers", high=100_000)))


FAMILY = Family(
    config=config,
    rules=(*qwen3.RULES, *qwen2_moe.EXPERTS),
    ignored=llama.IGNORED,
    architecture="Qwen3MoeForCausalLM",
)
