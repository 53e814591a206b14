"""Kolibri 1 (Aleph Alpha, 2026): EXAONE 4's attention and many small experts between two norms; a correction moves the router's logits."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, gemma2, llama, moe_fields, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.fixed("attention_bias", False)
    hf.read |= {"intermediate_size"}  # of dense layers: it has none
    near = replace(llama.attention(hf, qk_norm=True, head=128), window=hf.length("sliding_window", 513))
    full = replace(near, rope=None, window=None)
    shared, normalised = hf.integer("shared_expert_intermediate_size", 512, low=0), hf.flag("norm_topk_prob", False)
    moe = moe_fields.by_softmax(hf, "moe_intermediate_size", shared=shared, normalised=normalised)
    moe = replace(moe, affinity="sigmoid", least=0.0, corrected=True, corrects_logits=True)
    by_kind = {kind: c.Layer(attn, moe, order="sandwich") for kind, attn in ((gemma2.SLIDING, near), (gemma2.FULL, full))}
    return llama.decoder(hf, tuple(by_kind[kind] for kind in gemma2.kinds(hf, 5)))


LAYER = "model.layers.{i}."
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attn_norm": "attn_post_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_ffn_norm": "ffn_post_norm",
}
CORRECTION = Rule(f"{LAYER}moe.router.expert_bias", "layers.{i}.ffn.correction")
RULES = (
    *llama.ENDS,
    *(Rule(f"{LAYER}{theirs}.*", f"layers.{{i}}.{ours}.*") for theirs, ours in NORMS.items()),
    *llama.ATTENTION,
    *qwen3.QK_NORMS,
    *(CORRECTION if rule.ours == CORRECTION.ours else rule for rule in deepseek_v3.EXPERTS),
)
PUBLISHED = {
    ".mlp.gate.e_score_correction_bias": ".moe.router.expert_bias",
    ".post_self_attn_layernorm": ".post_attn_norm",
    ".post_mlp_layernorm": ".post_ffn_norm",
}


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' names in memory."""
    for theirs, disk in PUBLISHED.items():
        name = name.replace(theirs, disk)
    return name


FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, respell=respell, architecture="Kolibri1ForCausalLM")
