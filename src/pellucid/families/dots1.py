"""dots.llm1 (arXiv 2506.05767): Qwen3's attention, windows in the upper layers if the file has them, and DeepSeek-V3's experts."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, gemma2, llama, moe_fields, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def windows(hf: Fields) -> list[int | None]:
    """Return each layer's window: listed by kind, or from layer `max_window_layers` on."""
    layers, window = hf.integer("num_hidden_layers", high=100_000), hf.maybe("sliding_window", stated=True)
    first = hf.integer("max_window_layers", 62, low=0)
    if "layer_types" in hf:
        kinds = hf.texts("layer_types", layers, gemma2.KINDS)
        if window is None and gemma2.SLIDING in kinds:
            raise hf.fault("sliding_window", window, "int > 0")
        return [window if kind == gemma2.SLIDING else None for kind in kinds]
    return [window if i >= first else None for i in range(layers)]


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.read |= {"num_nextn_predict_layers"}  # modules behind the last layer are another model
    attn, experts = llama.attention(hf, qk_norm=True), deepseek_v3.moe(hf, normalised=False)
    layers = moe_fields.dense_first(hf, attn, experts)
    return llama.decoder(hf, tuple(replace(one, attn=replace(attn, window=w)) for one, w in zip(layers, windows(hf), strict=True)))


FAMILY = Family(
    config=config,
    rules=(*qwen3.RULES, *deepseek_v3.EXPERTS),
    ignored=deepseek_v3.ignored,
    architecture="Dots1ForCausalLM",
)
