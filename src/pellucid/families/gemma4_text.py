"""Gemma 4's text model (2026): Gemma 3 whose full layers have other heads, turn a part of them, and take their values from the keys.

Norms count from 0 again, values are normed too, and what leaves a block is times one stored number. Models with experts, with inputs of
each layer or with layers that share keys (E2B, E4B, 26B-A4B) are refused by the field.
"""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import gemma, gemma2, gemma3_text, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.rope import rope

TURNS: dict[str, Any] = {  # of files that say none
    gemma2.SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    gemma2.FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
UNUSED = {
    "vocab_size_per_layer_input",
    "use_double_wide_mlp",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
    "expert_intermediate_size",
}


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind; the last one is full."""
    layers = gemma2.kinds(hf, 6)
    hf.relate("layer_types" not in hf or layers[-1] == gemma2.FULL, f"layer_types[-1] == {gemma2.FULL}", last=layers[-1])
    return [*layers[:-1], gemma2.FULL]


def sizes(hf: Fields, layers: list[str], keys: bool) -> list[tuple[int, int]]:
    """Return the width of a head and the number of key heads of each layer. keys: full layers have their own number."""
    head, groups = hf.integer("head_dim", 256), hf.integer("num_key_value_heads", 4)
    full = hf.integer("global_head_dim", 512), hf.integer("num_global_key_value_heads", groups) if keys else groups
    hf.read |= {"num_global_key_value_heads"}
    each = hf.part("per_layer_config")
    if each is None:
        return [full if kind == gemma2.FULL else (head, groups) for kind in layers]
    out = [(head, groups)] * len(layers)
    for name in each.values:  # "2", or "05" of a model of ten layers or more
        own = each.part(name)
        if own is None or not name.isdecimal() or int(name) >= len(layers):
            raise each.fault(name, each.values[name], f"0 ... {len(layers) - 1}: {{ ... }}")
        out[int(name)] = own.integer("head_dim", head), own.integer("num_key_value_heads", groups)
    return out


def turn(hf: Fields, kind: str, head: int) -> c.Rope:
    """Return the rotary positions of a kind of layer whose heads are `head` wide."""
    every = hf.part("rope_parameters")
    own = None if every is None else every.part(kind)
    if own is None or own.get("rope_type", "default") != "proportional":
        return rope(hf, head, layer=kind)
    turning = int(own.number("partial_rotary_factor", 1.0) * head // 2)
    own.relate(0 < turning <= head // 2, "0 < partial_rotary_factor <= 1", turning=turning, pairs=head // 2)
    return c.Rope(head, own.number("rope_theta", above=1.0), scaling=c.Proportional(turning, own.number("factor", 1.0)))


def config(hf: Fields, inputs: int = 256) -> c.Config:
    """Return the Config. inputs: the width of each layer's own input, of files that say none."""
    for name in ("rope_theta", "rope_scaling"):
        hf.fixed(name)  # one turn for both kinds of layers has no meaning
    if "rope_parameters" not in hf:
        hf.values = {**hf.values, "rope_parameters": TURNS}
    if hf.values.get("use_bidirectional_attention") == "vision":  # of images alone
        hf.read.add("use_bidirectional_attention")
    hf.fixed("num_kv_shared_layers", 0)
    hf.fixed("enable_moe_block", False)
    if (own := hf.integer("hidden_size_per_layer_input", inputs, low=0)) != 0:
        raise hf.fault("hidden_size_per_layer_input", own, "0")
    hf.read |= UNUSED
    heads, window = hf.integer("num_attention_heads", 8), hf.integer("sliding_window", 512)
    one, bias, layers = hf.flag("attention_k_eq_v", False), hf.flag("attention_bias", False), kinds(hf)
    attns = []
    for kind, (head, groups) in zip(layers, sizes(hf, layers, one), strict=True):
        hf.relate(heads % groups == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=groups)
        attn = c.Attention(heads, groups, head, turn(hf, kind, head), True, bias=bias, out_bias=bias, scale=1.0, v_rms=True)
        full = kind == gemma2.FULL
        attns.append(replace(attn, v_from_k=one) if full else replace(attn, window=window))
    mlp = gemma2.mlp(hf)
    cfg = gemma.decoder(hf, tuple(c.Layer(attn, mlp, order="sandwich, scaled") for attn in attns))
    return replace(cfg, norm="rms", logit_cap=hf.optional("final_logit_softcapping"))


RULES = (*gemma3_text.RULES, Rule("model.layers.{i}.layer_scalar", "layers.{i}.scalar"))

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Gemma4ForCausalLM")
