"""Trinity (Arcee AI, 2025): gated heads with Qwen3's norms, that turn in windowed layers alone, and corrected experts."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, gemma2, llama, moe_fields, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

# what published files say of the choice of experts, which transformers takes for granted
SAID = {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1, "num_expert_groups": 1, "num_limited_groups": 1}


def moe(hf: Fields) -> c.Moe:
    for name, value in SAID.items():
        hf.fixed(name, value)
    hf.read |= {"load_balance_coeff", "use_grouped_mm"}  # of training, and of speed
    count, chosen, width = moe_fields.experts(hf), hf.integer("num_experts_per_tok", 6), hf.integer("moe_intermediate_size", 1408)
    hf.relate(chosen <= count, "num_experts_per_tok <= num_experts", num_experts_per_tok=chosen, num_experts=count)
    shared = hf.integer("num_shared_experts", 2, low=0) * width
    return c.Moe(count, chosen, width, shared, scale=hf.number("route_scale", 1.0), act=hf.choice("hidden_act", ACTS, "silu"))


def config(hf: Fields) -> c.Config:
    hf.fixed("attention_bias", False)  # the gate has none in any file
    near = replace(llama.attention(hf, qk_norm=True, head=128), gated=True, window=hf.length("sliding_window", 1024))
    full = replace(near, rope=None, window=None)
    kinds, dense = gemma2.kinds(hf, hf.integer("global_attn_every_n_layers", 4)), hf.integer("num_dense_layers", 1, low=0)
    mlp, experts = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu")), moe(hf)
    layers = (
        c.Layer(near if kind == gemma2.SLIDING else full, mlp if i < dense else experts, order="sandwich") for i, kind in enumerate(kinds)
    )
    cfg = llama.decoder(hf, tuple(layers), eps=1e-5)
    return replace(cfg, embed_scale=cfg.width**0.5) if hf.flag("mup_enabled", False) else cfg


LAYER = "model.layers.{i}."
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "attn_post_norm",
    "pre_mlp_layernorm": "ffn_norm",
    "post_mlp_layernorm": "ffn_post_norm",
}
RULES = (
    *llama.ENDS,
    *(Rule(f"{LAYER}{theirs}.*", f"layers.{{i}}.{ours}.*") for theirs, ours in NORMS.items()),
    *llama.ATTENTION,
    *qwen3.QK_NORMS,
    Rule(f"{LAYER}self_attn.gate_proj.*", "layers.{i}.attn.gate.*"),
    *llama.DENSE,
    Rule(f"{LAYER}mlp.router.gate.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{LAYER}mlp.expert_bias", "layers.{i}.ffn.correction"),
    *deepseek_v3.EXPERTS[2:],
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="AfmoeForCausalLM")
