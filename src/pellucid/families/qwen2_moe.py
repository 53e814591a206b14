"""Qwen1.5-MoE, Qwen2-MoE (arXiv 2407.10671): Qwen2's attention; experts, and a gated shared expert."""

from collections.abc import Sequence
from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, moe_fields, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import STACKED, Rule


def layers(hf: Fields, attn: Sequence[c.AnyAttention], normalised: bool = False, **more: object) -> tuple[c.Layer, ...]:
    """Return one layer for each of these attentions, with experts or dense.

    normalised: whether shares are, where the file does not say.  more: settings of the experts.
    """
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    moe = moe_fields.by_softmax(hf, "moe_intermediate_size", normalised=hf.flag("norm_topk_prob", normalised), **more)
    return tuple(c.Layer(a, moe if sparse else mlp) for a, sparse in zip(attn, moe_fields.sparse(hf, len(attn)), strict=True))


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.fixed("attention_bias", False)
    attn = replace(llama.attention(hf), bias=hf.flag("qkv_bias", True))
    if hf.flag("use_sliding_window", False):
        hf.get("layer_types")  # which layers `max_window_layers` means has changed with transformers' versions
    windows = qwen3.windows(hf, hf.integer("num_hidden_layers", high=100_000))
    shared = hf.integer("shared_expert_intermediate_size")
    return llama.decoder(hf, layers(hf, [replace(attn, window=w) for w in windows], shared=shared, shared_gate=True))


EXPERTS = (
    Rule("model.layers.{i}.mlp.gate.weight", "layers.{i}.ffn.router.weight"),
    *(Rule(f"model.layers.{{i}}.mlp.experts.{{e}}.{n}_proj.weight", f"layers.{{i}}.ffn.{n}", STACKED) for n in ("gate", "up", "down")),
)
SHARED = tuple(Rule(f"model.layers.{{i}}.mlp.shared_expert.{n}_proj.*", f"layers.{{i}}.ffn.shared.{n}.*") for n in ("gate", "up", "down"))
RULES = (
    *llama.RULES,
    *EXPERTS,
    *SHARED,
    Rule("model.layers.{i}.mlp.shared_expert_gate.*", "layers.{i}.ffn.shared_gate.*"),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Qwen2MoeForCausalLM")
