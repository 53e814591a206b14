"""GLM-4 0414 (model_type glm4): GLM's block with one more norm after each part."""

from pellucid import config as c
from pellucid.families import glm, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    return glm.config(hf, order="sandwich")


NORMS = {
    "input_layernorm": "attn_norm",
    "post_self_attn_layernorm": "attn_post_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "ffn_post_norm",
}
RULES = (*glm.PARTS, *(Rule(f"model.layers.{{i}}.{theirs}.*", f"layers.{{i}}.{ours}.*") for theirs, ours in NORMS.items()))

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Glm4ForCausalLM")
