"""DeepSeek-V2 and V2-Lite (arXiv 2405.04434): V3's latent attention, and experts chosen by a softmax, optionally in groups."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, llama, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def moe(hf: Fields) -> c.Moe:
    """Return the experts; a group's score is that of its best expert."""
    hf.fixed("scoring_func", "softmax")
    hf.fixed("moe_layer_freq", 1)
    hf.fixed("norm_topk_prob", False)  # DeepSeek's code and transformers differ on it, and no published file asks for it
    free = moe_fields.by_softmax(hf, "moe_intermediate_size", scale=hf.number("routed_scaling_factor", 1.0), normalised=False)
    free = replace(free, shared=hf.integer("n_shared_experts", low=0) * free.width)
    if not hf.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy"):
        hf.read |= {"n_group", "topk_group"}
        return free
    groups, kept = moe_fields.groups(hf, free.experts, free.chosen)
    return replace(free, groups=groups, groups_chosen=kept, group_best=1)


def config(hf: Fields) -> c.Config:
    hf.fixed("rope_interleave", True)
    return llama.decoder(hf, moe_fields.dense_first(hf, deepseek_v3.latent(hf), moe(hf)))


FAMILY = Family(
    config=config,
    rules=deepseek_v3.RULES,
    ignored=deepseek_v3.ignored,
    architecture="DeepseekV2ForCausalLM",
)
