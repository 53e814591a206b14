"""Hunyuan 3 (Tencent, 2026): Qwen3's attention, a dense layer, then experts chosen by corrected sigmoids beside a shared one."""

from pellucid import config as c
from pellucid.families import deepseek_v3, llama, moe_fields, qwen2_moe, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

DENSE, SPARSE = KINDS = ("dense", "sparse")
SAID = {"qk_norm": True, "moe_router_use_sigmoid": True, "moe_router_enable_expert_bias": True, "route_norm": True}


def moe(hf: Fields) -> c.Moe:
    hf.read |= {"enable_moe_fp32_combine"}  # only how a sum is rounded
    for name, value in SAID.items():
        hf.fixed(name, value)
    count, chosen, width = moe_fields.experts(hf), hf.integer("num_experts_per_tok", 8), hf.integer("moe_intermediate_size", 1536)
    hf.relate(chosen <= count, "num_experts_per_tok <= experts", num_experts_per_tok=chosen, experts=count)
    shared, scale = hf.integer("num_shared_experts", 1, low=0) * width, hf.number("router_scaling_factor", 2.826)
    return c.Moe(count, chosen, width, shared, scale=scale, act=hf.choice("hidden_act", ACTS, "silu"))


def config(hf: Fields) -> c.Config:
    layers, first = hf.integer("num_hidden_layers", high=100_000), hf.integer("first_k_dense_replace", 1, low=0)
    hf.maybe("num_key_value_heads", stated=True)
    hf.read |= {"num_nextn_predict_layers"}  # modules behind the last layer are another model
    attn = llama.attention(hf, qk_norm=True, head=128, theta=11_158_840.0)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    experts, kinds = moe(hf), [DENSE if i < first else SPARSE for i in range(layers)]
    if "mlp_layer_types" in hf:
        kinds = hf.texts("mlp_layer_types", layers, KINDS)
    hf.relate(not mlp.bias, "mlp_bias == false", mlp_bias=mlp.bias)
    return llama.decoder(hf, tuple(c.Layer(attn, experts if kind == SPARSE else mlp) for kind in kinds), eps=1e-5)


MLP = "model.layers.{i}.mlp"
RULES = (
    *qwen3.RULES,
    Rule(f"{MLP}.router.gate.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{MLP}.expert_bias", "layers.{i}.ffn.correction"),
    *qwen2_moe.EXPERTS[1:],
    *(Rule(f"{MLP}.shared_mlp.{n}_proj.*", f"layers.{{i}}.ffn.shared.{n}.*") for n in ("gate", "up", "down")),
)
PUBLISHED = {
    ".mlp.e_score_correction_bias": ".mlp.expert_bias",
    ".mlp.gate.": ".mlp.router.gate.",
    ".mlp.shared_experts.": ".mlp.shared_mlp.",
}


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' names in memory."""
    for theirs, disk in PUBLISHED.items():
        name = name.replace(theirs, disk)
    return name


FAMILY = Family(config=config, rules=RULES, ignored=deepseek_v3.ignored, respell=respell, architecture="HYV3ForCausalLM")
