"""Granite SWA (IBM, 2026): Granite with a sink a head, windows in three of four layers, and a turn of each layer's own, or none."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, granite, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def turns(hf: Fields, layers: int, common: c.Rope | None) -> list[c.Rope | None]:
    """Return each layer's turn: the common one, or that with the layer's own base, where 0 means none."""
    if common is None or hf.get("layer_rope_theta", None) is None:
        return [common] * layers
    bases = hf.numbers("layer_rope_theta", above=-1.0)
    if len(bases) != layers or any(base and base <= 1 for base in bases):
        raise hf.fault("layer_rope_theta", list(bases), f"{layers} × (0 | > 1)")
    return [replace(common, theta=base) if base else None for base in bases]


def attentions(hf: Fields) -> list[c.AnyAttention]:
    """Return the attention of each layer."""
    layers, attn = hf.integer("num_hidden_layers", high=100_000), replace(granite.attention(hf), sinks=True)
    kinds = [gemma2.SLIDING if i % 4 else gemma2.FULL for i in range(layers)]
    if "layer_types" in hf:
        kinds = hf.texts("layer_types", layers, gemma2.KINDS)
    window = hf.length("sliding_window", 128)
    pairs = zip(turns(hf, layers, attn.rope), kinds, strict=True)
    return [replace(attn, rope=turn, window=window if kind == gemma2.SLIDING else None) for turn, kind in pairs]


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    cfg = granite.multiplied(hf, mlp, attentions(hf))
    return replace(cfg, eps=hf.number("rms_norm_eps", 1e-5), tied=hf.flag("tie_word_embeddings", True))


SINKS = Rule("model.layers.{i}.self_attn.sinks", "layers.{i}.attn.sinks")
FAMILY = Family(config=config, rules=(*llama.RULES, SINKS), ignored=llama.IGNORED, architecture="GraniteSWAForCausalLM")
