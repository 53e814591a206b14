"""Llama 4's text model (Scout and Maverick, 2025): three layers with rotary positions and chunked masks, then one with neither.

Experts read their rows times a sigmoid's share, beside a shared expert. Layers without rotary positions scale queries by position.
"""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, moe_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import EXPERTS_TURNED, FUSED_TURNED, Rule

FULL, CHUNKED = KINDS = ("full_attention", "chunked_attention")


def rotary_layers(hf: Fields, layers: int) -> list[bool]:
    """Return which layers have rotary positions: `no_rope_layers` where it is 1, or all but each `no_rope_layer_interval`-th."""
    every, rotary = hf.integer("no_rope_layer_interval", 4), hf.indices("no_rope_layers", 2)
    hf.relate(not rotary or len(rotary) >= layers, "len(no_rope_layers) >= num_hidden_layers", found=len(rotary), layers=layers)
    return [bool(t) for t in rotary[:layers]] or [(i + 1) % every != 0 for i in range(layers)]


def sparse(hf: Fields, layers: int) -> list[bool]:
    """Return which layers have experts: those that `moe_layers` lists, or each `interleave_moe_layer_step`-th."""
    step = hf.integer("interleave_moe_layer_step", 1)
    chosen = range(step - 1, layers, step) if hf.get("moe_layers", None) is None else hf.indices("moe_layers", layers)
    return [i in chosen for i in range(layers)]


def attentions(hf: Fields) -> dict[bool, c.Attention]:
    """Return {True: attention with rotary positions, False: attention without}."""
    hf.maybe("num_key_value_heads", stated=True)
    attn = llama.attention(hf, head=128, theta=500_000.0, interleaved=True)
    temper = c.Temper(hf.integer("floor_scale", 8192), hf.number("attn_scale", 0.1))
    hf.fixed("attn_temperature_tuning", True, False, 4)  # 4 is the yes of the first files
    still = replace(attn, rope=None, temper=temper if hf.get("attn_temperature_tuning", True) else None)
    return {True: replace(attn, qk_rms=hf.flag("use_qk_norm", True)), False: still}


def moe(hf: Fields) -> c.Moe:
    count, chosen, width = moe_fields.experts(hf), hf.integer("num_experts_per_tok", 1), hf.integer("intermediate_size")
    hf.relate(chosen <= count, "num_experts_per_tok <= num_local_experts", num_experts_per_tok=chosen, num_local_experts=count)
    act = hf.choice("hidden_act", ACTS, "silu")
    return c.Moe(count, chosen, width, width, normalised=False, act=act, corrected=False, share_first=True)


def config(hf: Fields) -> c.Config:
    layers, chunk = hf.integer("num_hidden_layers", high=100_000), hf.length("attention_chunk_size", 8192)
    turns, attn = rotary_layers(hf, layers), attentions(hf)
    silent = hf.get("layer_types", None) is None
    kinds = [CHUNKED if t else FULL for t in turns] if silent else hf.texts("layer_types", layers, KINDS)
    ffn: dict[bool, c.Mlp | c.Moe] = {
        True: moe(hf),
        False: c.Mlp(hf.integer("intermediate_size_mlp"), hf.choice("hidden_act", ACTS, "silu")),
    }
    hf.read |= {"for_llm_compressor"}
    blocks = (
        c.Layer(replace(attn[t], chunk=chunk if kind == CHUNKED else None), ffn[has])
        for t, kind, has in zip(turns, kinds, sparse(hf, layers), strict=True)
    )
    return llama.decoder(hf, tuple(blocks), eps=1e-5)


FFN, OURS = "model.layers.{i}.feed_forward", "layers.{i}.ffn"
RULES = (
    *llama.ENDS,
    *llama.NORMS,
    *llama.ATTENTION,
    *(Rule(f"{FFN}.{n}_proj.*", f"{OURS}.{n}.*") for n in ("gate", "up", "down")),
    *(Rule(f"{FFN}.shared_expert.{n}_proj.*", f"{OURS}.shared.{n}.*") for n in ("gate", "up", "down")),
    Rule(f"{FFN}.router.weight", f"{OURS}.router.weight"),
    Rule(f"{FFN}.experts.gate_up_proj", (f"{OURS}.gate", f"{OURS}.up"), FUSED_TURNED),
    Rule(f"{FFN}.experts.down_proj", f"{OURS}.down", EXPERTS_TURNED),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Llama4ForCausalLM")
