"""ModernBERT as a decoder (Ettin, arXiv 2507.11412): each token sees those before it, near layers half of ModernBERT's window."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import modernbert
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed


def config(hf: Fields) -> c.Config:
    hf.fixed("is_causal", True)
    near = hf.integer("sliding_window", hf.integer("local_attention", 128) // 2)
    around = modernbert.attention(hf)
    attns = [replace(attn, causal=True, window=None if attn.window is None else near) for attn in around]
    return modernbert.headed(hf, modernbert.body(hf, attns), head=True)


RULES = (
    *(rule for rule in modernbert.RULES if not rule.disk.startswith("head.") and "Wqkv" not in rule.disk),
    *(Rule(f"{modernbert.LAYER}.attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule("lm_head.dense.*", "transform.dense.*"),
    Rule("lm_head.norm.*", "transform.norm.*"),
)


FAMILY = Family(
    config=config,
    rules=RULES,
    respell=prefixed("model.", "lm_head.", "decoder."),
    architecture="ModernBertDecoderForCausalLM",
)
