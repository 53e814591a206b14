"""GTE (arXiv 2407.19669), mGTE's embedders: BERT with rope, and a gated network that has a bias in its last product alone."""

from collections.abc import Container

from pellucid import config as c
from pellucid.families import encoder_fields, roberta
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, Rule, prefixed
from pellucid.families.rope import rope

SILENT = {"pack_qkv", "unpad_inputs", "use_memory_efficient_attention"}  # of kernels, in Alibaba's own files
# in Alibaba's own files too, with the only values that transformers' class computes
OWN = {"layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False}


def config(hf: Fields) -> c.Config:
    hf.read |= SILENT
    for name, value in OWN.items():
        hf.fixed(name, value)
    hf.fixed("position_embedding_type", "rope")
    hf.fixed("tie_word_embeddings", True)
    width, heads, layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("num_hidden_layers", high=100_000)
    fits = "head_dim" in hf or width % heads == 0
    hf.relate(fits, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    head = hf.maybe("head_dim") or width // heads
    attn = c.Attention(heads, heads, head, rope(hf, head, theta=160_000.0), bias=True, out_bias=True, causal=False)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "gelu"), down_bias=True)
    cfg = c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order="post"),) * layers,
        eps=hf.number("layer_norm_eps", 1e-12),
        norm="layer",
        embed_norm=True,
        types=hf.integer("type_vocab_size", 1, low=0) or None,
        final_norm=False,
        context=hf.integer("max_position_embeddings", 8192),
    )
    return roberta.exact(encoder_fields.ending(cfg, not encoder_fields.bare(hf), pooler=False))


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with a head if one is stored, whatever config.json says."""
    return roberta.exact(encoder_fields.ending(cfg, "lm_head.decoder.bias" in names, pooler=False))


LAYER = "gte.encoder.layer.{i}"
RULES = (
    *encoder_fields.embeddings("gte"),
    Rule(f"{LAYER}.attention.qkv_proj.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), SPLIT),
    Rule(f"{LAYER}.attention.o_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.attn_ln.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.mlp.up_gate_proj.*", ("layers.{i}.ffn.up.*", "layers.{i}.ffn.gate.*"), SPLIT),
    Rule(f"{LAYER}.mlp.down_proj.*", "layers.{i}.ffn.down.*"),
    Rule(f"{LAYER}.mlp_ln.*", "layers.{i}.ffn_norm.*"),
    Rule("lm_head.dense.*", "transform.dense.*"),
    Rule("lm_head.norm.*", "transform.norm.*"),
    Rule("lm_head.decoder.*", "head.*"),
)
IGNORED = (r"gte\.pooler\..*",)  # of heads that sort texts

IN_MEMORY = {
    "gte.layers.": "gte.encoder.layer.", ".self_attn.": ".attention.", ".post_attention_layernorm.": ".attn_ln.",
    ".post_mlp_layernorm.": ".mlp_ln.", "lm_head.layer_norm.": "lm_head.norm.",
}  # fmt: skip


def respell(name: str) -> str:
    """Return a name of Alibaba's own files, of transformers' modules, or of a model without its head, as the table has it."""
    full = prefixed("gte.", "lm_head.")(name.removeprefix("new."))
    for theirs, own in IN_MEMORY.items():
        full = full.replace(theirs, own)
    return full


FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, respell=respell, resolve=resolve, architecture="GteForMaskedLM")
