"""Qwen3.5's text model with experts (2026): Qwen3-Next's layers, their products apart."""

from pellucid import config as c
from pellucid.families import moe_fields, qwen2_moe, qwen3_5_text, qwen3_next
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    hf.fixed("norm_topk_prob", True)
    shared = hf.integer("shared_expert_intermediate_size", 512)
    moe = moe_fields.by_softmax(hf, "moe_intermediate_size", shared=shared, shared_gate=True)
    return qwen3_next.decoder(hf, tuple(c.Layer(mixer, moe) for mixer in qwen3_5_text.mixers(hf)))


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (*qwen3_next.gated_attention(cfg), *qwen3_5_text.APART, *qwen3_next.DELTA_RULES, *qwen2_moe.RULES)


FAMILY = Family(config=config, rules=rules, ignored=qwen3_next.IGNORED, architecture="Qwen3_5MoeForCausalLM")
