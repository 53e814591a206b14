"""HyperCLOVA X SEED Think 14B (NAVER, 2025): Granite's multipliers, with a norm before and after each part."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import granite, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    hf.read.add("end_token_id")  # says `eos_token_id` again
    bias, attn = hf.flag("mlp_bias", False), llama.attention(hf)
    attn = replace(attn, scale=hf.number("attention_multiplier", attn.width**-0.5))
    ffn = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=bias)
    cfg = granite.multiplied(hf, ffn, (attn,) * hf.integer("num_hidden_layers", high=100_000))
    order = "sandwich" if hf.flag("use_post_norm", True) else "pre"
    layers = tuple(replace(layer, order=order) for layer in cfg.layers)
    return replace(cfg, layers=layers, logit_factor=hf.number("logits_scaling", 1.0))  # a factor here, a divisor in Granite


POST_NORMS = (
    Rule("model.layers.{i}.post_norm1.*", "layers.{i}.attn_post_norm.*"),
    Rule("model.layers.{i}.post_norm2.*", "layers.{i}.ffn_post_norm.*"),
)

FAMILY = Family(config=config, rules=(*llama.RULES, *POST_NORMS), ignored=llama.IGNORED, architecture="HyperCLOVAXForCausalLM")
