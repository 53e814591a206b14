"""ModernBERT (arXiv 2412.13663): BERT with norms before the parts, a gated network, and rope; two of three layers see a window around."""

from collections.abc import Container
from dataclasses import replace

from pellucid import config as c
from pellucid.families import encoder_fields, gemma2
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, Rule, prefixed
from pellucid.families.rope import rope

# of training, of heads that sort texts, and of kernels
SILENT = """
    classifier_pooling deterministic_flash_attn initializer_cutoff_factor mlp_dropout
    reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction position_embedding_type layer_norm_eps
"""


def attention(hf: Fields) -> list[c.Attention]:
    """Return the attention of each layer: a window around the query, or all."""
    width, heads, layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("num_hidden_layers", high=100_000)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    head, bias, near = width // heads, hf.flag("attention_bias", False), hf.integer("local_attention", 128) // 2 + 1
    every = hf.integer("global_attn_every_n_layers", 3)
    kinds = [gemma2.SLIDING if i % every else gemma2.FULL for i in range(layers)]
    if "layer_types" in hf:
        kinds = hf.texts("layer_types", layers, gemma2.KINDS)
    far = rope(hf, head, layer=gemma2.FULL, theta=160_000.0, base="global_rope_theta")
    close = rope(hf, head, layer=gemma2.SLIDING, base="local_rope_theta")
    all_of_it = c.Attention(heads, heads, head, far, bias=bias, out_bias=bias, causal=False)
    return [replace(all_of_it, rope=close, window=near) if kind == gemma2.SLIDING else all_of_it for kind in kinds]


def config(hf: Fields) -> c.Config:
    return headed(hf, body(hf, attention(hf)), not encoder_fields.bare(hf))


def body(hf: Fields, attns: list[c.Attention]) -> c.Config:
    """Return the config of the blocks, each with its attention."""
    hf.read |= set(SILENT.split())
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_activation", ACTS, "gelu"), bias=hf.flag("mlp_bias", False))
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=tuple(c.Layer(attn, mlp, order="pre" if i else "half") for i, attn in enumerate(attns)),
        eps=hf.number("norm_eps", 1e-5),
        norm="layer" if hf.flag("norm_bias", False) else "layer, no bias",
        embed_norm=True,
        context=hf.maybe("max_position_embeddings"),
    )


def headed(hf: Fields, cfg: c.Config, head: bool) -> c.Config:
    """Return `cfg` with the head that hf tells of, or without one."""
    hf.fixed("tie_word_embeddings", True)
    hf.fixed("decoder_bias", True)
    bias, act = hf.flag("classifier_bias", False), hf.choice("classifier_activation", ACTS, "gelu")
    return replace(encoder_fields.ending(cfg, head, pooler=False), transform=act if head else None, transform_bias=bias)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` without a head if none is stored, whatever config.json says."""
    return cfg if "decoder.bias" in names or not cfg.head else encoder_fields.ending(cfg, head=False, pooler=False)


LAYER = "model.layers.{i}"
RULES = (
    Rule("model.embeddings.tok_embeddings.*", "embed.*"),
    Rule("model.embeddings.norm.*", "embed_norm.*"),
    Rule(f"{LAYER}.attn_norm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.attn.Wqkv.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), SPLIT),
    Rule(f"{LAYER}.attn.Wo.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.mlp_norm.*", "layers.{i}.ffn_norm.*"),
    Rule(f"{LAYER}.mlp.Wi.*", ("layers.{i}.ffn.gate.*", "layers.{i}.ffn.up.*"), SPLIT),
    Rule(f"{LAYER}.mlp.Wo.*", "layers.{i}.ffn.down.*"),
    Rule("model.final_norm.*", "norm.*"),
    Rule("head.dense.*", "transform.dense.*"),
    Rule("head.norm.*", "transform.norm.*"),
    Rule("decoder.*", "head.*"),
)


FAMILY = Family(
    config=config,
    rules=RULES,
    respell=prefixed("model.", "head.", "decoder."),
    resolve=resolve,
    architecture="ModernBertForMaskedLM",
)
