"""Cohere's mixtures (2026): Command A's block and windows, with experts in all but the first layers, and one norm of two kinds."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import cohere, cohere2, gemma2, llama, mellum, qwen2_moe
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def kinds(hf: Fields, dense: int) -> list[str]:
    """Return each layer's kind: listed, or the last of each pattern is full, counted anew behind the first `dense` layers."""
    layers = hf.integer("num_hidden_layers", high=100_000)
    hf.relate(dense <= layers, "first_k_dense_replace <= num_hidden_layers", dense=dense, layers=layers)
    first, later = hf.integer("prefix_dense_sliding_window_pattern", 1), hf.integer("sliding_window_pattern", 4)
    if "layer_types" in hf:
        return hf.texts("layer_types", layers, gemma2.KINDS)
    every = [(i, first) if i < dense else (i - dense, later) for i in range(layers)]
    return [gemma2.SLIDING if (i + 1) % pattern else gemma2.FULL for i, pattern in every]


def experts(hf: Fields) -> c.Moe:
    """Return the experts. A softmax over the chosen alone is that over all, divided by the sum of the chosen."""
    count, chosen = hf.integer("num_experts", 8), hf.integer("num_experts_per_tok", 2)
    hf.relate(chosen <= count, "num_experts_per_tok <= num_experts", num_experts_per_tok=chosen, num_experts=count)
    width, shared = hf.integer("intermediate_size"), hf.integer("num_shared_experts", 0, low=0)
    affinity = hf.choice("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"}, "softmax")
    normalised = hf.flag("norm_topk_prob", True) or affinity == "softmax"
    act = hf.choice("hidden_act", ACTS, "silu")
    return c.Moe(count, chosen, width, shared * width, affinity, normalised=normalised, act=act, corrected=False, least=0.0)


def config(hf: Fields) -> c.Config:
    dense = hf.integer("first_k_dense_replace", 0, low=0)
    attn, window, layers = llama.attention(hf, interleaved=True, head=128), hf.length("sliding_window", 4096), kinds(hf, dense)
    parts = [mellum.DENSE] * dense + [mellum.SPARSE] * (len(layers) - dense)
    if "mlp_layer_types" in hf:
        parts = hf.texts("mlp_layer_types", len(layers), (mellum.DENSE, mellum.SPARSE))
    turns = hf.integer("prefix_dense_sliding_window_pattern", 1) == 1  # of dense layers, in full ones too
    moe, act = experts(hf), hf.choice("hidden_act", ACTS, "silu")
    mean = hf.choice("shared_expert_combination_strategy", {"average": True, "sum": False}, "average") and moe.shared
    mixed = c.Layer(attn, moe, order="parallel", factors=(("ffn", 0.5),) if mean else ())
    single = c.Layer(attn, c.Mlp(hf.integer("prefix_dense_intermediate_size", hf.integer("intermediate_size")), act), order="parallel")
    out = []
    for kind, part in zip(layers, parts, strict=True):
        full = replace(attn, rope=attn.rope if part == mellum.DENSE and turns else None)
        own = replace(attn, window=window) if kind == gemma2.SLIDING else full
        out.append(replace(single if part == mellum.DENSE else mixed, attn=own))
    hf.read |= cohere2.TOLD_AGAIN | {"layer_norm_eps"}
    cfg = replace(cohere.decoder(hf, (attn,)), layers=tuple(out))
    eps = hf.optional("rms_norm_eps")
    return cfg if eps is None else replace(cfg, norm="rms", eps=eps)


SHARED = tuple(Rule(f"model.layers.{{i}}.mlp.shared_experts.{n}_proj.*", f"layers.{{i}}.ffn.shared.{n}.*") for n in ("gate", "up", "down"))
RULES = (*cohere.RULES, *qwen2_moe.EXPERTS, *SHARED)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Cohere2MoeForCausalLM", does_more=("ffn",))
