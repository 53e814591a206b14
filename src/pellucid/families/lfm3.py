"""LFM3 (Liquid AI, 2026): LFM2's short convolutions between windows and full layers, whose heads are gated, in sandwiches of norms."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, lfm2, llama, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.gemma4_fields import TURNS, turn
from pellucid.families.names import Rule

FULL, SLIDING, CONV = KINDS = ("full_attention", "sliding_attention", "conv")
THETA = 1_000_000.0


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind: listed, or of each four a window, a convolution, full attention and a convolution; the first has none."""
    layers = hf.integer("num_hidden_layers", high=100_000)
    if "layer_types" in hf:
        return hf.texts("layer_types", layers, KINDS)
    return [FULL if i % 4 == 2 else CONV if i % 2 or not i else SLIDING for i in range(layers)]


def attention(hf: Fields) -> c.Attention:
    """Return the attention of all layers that have it, without its window and its turn."""
    heads, groups = hf.integer("num_attention_heads", 16), hf.integer("num_key_value_heads", 4)
    hf.relate(heads % groups == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=groups)
    bias, gated = hf.flag("attention_bias", False), hf.flag("use_attention_gate", True)
    return c.Attention(heads, groups, hf.integer("head_dim", 128), None, True, bias=bias, out_bias=bias, gated_heads=gated)


def turns(hf: Fields, kind: str, head: int) -> c.Rope:
    """Return the rotary positions of a kind of layer, which has to have its own."""
    every = hf.part("rope_parameters")
    assert every is not None
    every.get(kind)
    return turn(hf, kind, head, THETA)


def config(hf: Fields) -> c.Config:
    for name in ("rope_theta", "rope_scaling"):
        hf.fixed(name)  # one turn for both kinds of attention has no meaning
    if "rope_parameters" not in hf:
        hf.values = {**hf.values, "rope_parameters": {**TURNS, FULL: TURNS[FULL] | {"partial_rotary_factor": 0.5}}}
    attn, each, window = attention(hf), kinds(hf), hf.length("sliding_window", 256)
    mixers: dict[str, c.AnyAttention] = {CONV: c.ShortConv(hf.integer("conv_L_cache", 7, high=4096), hf.flag("conv_bias", False))}
    for kind in gemma2.KINDS:
        if kind in each:
            mixers[kind] = replace(attn, rope=turns(hf, kind, attn.width), window=window if kind == SLIDING else None)
        elif (every := hf.part("rope_parameters")) is not None:
            every.read.add(kind)  # of a kind that no layer is
    order = "sandwich" if hf.flag("use_sandwich_norm", True) else "pre"
    mlp = c.Mlp(hf.integer("intermediate_size", 7680))
    return c.Config(
        vocab=hf.integer("vocab_size", 128_000),
        width=hf.integer("hidden_size", 2048),
        layers=tuple(c.Layer(mixers[kind], mlp, order=order) for kind in each),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("norm_eps", 1e-5),
        context=hf.maybe("max_position_embeddings"),
    )


GATE = ("self_attn.g_proj.", "self_attn.gate_proj.")  # in memory, and on disk
RULES = (
    *(rule for rule in lfm2.RULES if ".self_attn." not in rule.disk),
    *llama.ATTENTION,
    *qwen3.QK_NORMS,
    Rule(f"{lfm2.LAYER}{GATE[1]}*", "layers.{i}.attn.head_gate.*"),
    *(Rule(f"{lfm2.LAYER}post_operator_norm.*", f"layers.{{i}}.{part}_post_norm.*") for part in ("attn", "conv")),
    Rule(f"{lfm2.LAYER}post_ffn_norm.*", "layers.{i}.ffn_post_norm.*"),
)

FAMILY = Family(config=config, rules=RULES, respell=lambda name: name.replace(*GATE), architecture="Lfm3ForCausalLM")
