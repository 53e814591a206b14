"""SmolLM3 (2025): Llama's block without rotary positions in every fourth layer."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, llama4_text, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def windows(hf: Fields, turns: list[bool]) -> list[int | None]:
    """Return each layer's window: by `layer_types`, or without it of the layers that do not turn."""
    if hf.get("layer_types", None) is not None:
        return qwen3.windows(hf, len(turns))
    window = hf.maybe("sliding_window") if hf.flag("use_sliding_window", False) else None
    hf.read |= {"sliding_window", "max_window_layers"}
    return [None if turn else window for turn in turns]


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    attn, turns = llama.attention(hf, theta=2_000_000.0), llama4_text.rotary_layers(hf, hf.integer("num_hidden_layers", high=100_000))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    layers = tuple(
        c.Layer(replace(attn, rope=attn.rope if turn else None, window=window), mlp)
        for turn, window in zip(turns, windows(hf, turns), strict=True)
    )
    return replace(llama.decoder(hf, layers), tied=hf.flag("tie_word_embeddings", True))


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="SmolLM3ForCausalLM")
