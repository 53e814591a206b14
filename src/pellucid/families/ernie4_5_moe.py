"""ERNIE 4.5 with experts (Baidu, 2025; its 21B and 300B): softmax shares, chosen with a correction, beside shared experts."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, ernie4_5, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import ROW, Rule


def moe(hf: Fields) -> c.Moe:
    count, chosen, width = hf.integer("moe_num_experts", 64), hf.integer("moe_k", 6), hf.integer("moe_intermediate_size", 1536)
    hf.relate(chosen <= count, "moe_k <= moe_num_experts", moe_k=chosen, moe_num_experts=count)
    hf.fixed("moe_norm_min", 1e-12)  # the least sum that shares are divided by
    hf.fixed("moe_use_aux_free", True)
    hf.fixed("moe_gate", "topk")
    hf.read |= {"moe_capacity"}  # of training
    shared, act = hf.integer("moe_num_shared_experts", 2, low=0) * width, hf.choice("hidden_act", ACTS, "silu")
    return c.Moe(count, chosen, width, shared=shared, affinity="softmax", act=act, least=0.0)


def sparse(hf: Fields, layers: int) -> list[bool]:
    """Return which layers have experts: every `moe_layer_interval`-th between the first and the last."""
    first, every = hf.integer("moe_layer_start_index", 1, low=0), hf.integer("moe_layer_interval", 1)
    last = hf.integer("moe_layer_end_index", layers - 1, low=0)
    return [(i + 1) % every == 0 and first <= i <= last for i in range(layers)]


def config(hf: Fields) -> c.Config:
    plain = ernie4_5.config(hf)
    experts, layers = moe(hf), plain.layers
    hf.fixed("use_bias", False)  # published models have none
    hf.read |= {"num_nextn_predict_layers"}  # modules behind the last layer are another model
    kinds = sparse(hf, len(layers))
    return replace(plain, layers=tuple(replace(one, ffn=experts if s else one.ffn) for one, s in zip(layers, kinds, strict=True)))


CORRECTION = Rule("model.layers.{i}.mlp.moe_statics.e_score_correction_bias", "layers.{i}.ffn.correction", ROW)
EXPERTS = tuple(rule for rule in deepseek_v3.EXPERTS if rule.ours != CORRECTION.ours)
IGNORED = (*llama.IGNORED, r"model\.mtp_.*")


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' name in memory."""
    return name.replace(".mlp.gate.moe_statics.", ".mlp.moe_statics.")


FAMILY = Family(
    config=config,
    rules=(*llama.RULES, *EXPERTS, CORRECTION),
    ignored=IGNORED,
    respell=respell,
    architecture="Ernie4_5_MoeForCausalLM",
)
