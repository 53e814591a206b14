"""DistilBERT (arXiv 1910.01108): BERT with half the layers, without token types and pooler."""

from collections.abc import Container

from pellucid import config as c
from pellucid.families import encoder_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

DROPOUTS = {"qa_dropout", "seq_classif_dropout"}


def config(hf: Fields) -> c.Config:
    width, heads = hf.either("dim", "hidden_size"), hf.either("n_heads", "num_attention_heads")
    layers, positions = hf.either("n_layers", "num_hidden_layers", high=100_000), hf.integer("max_position_embeddings", 512)
    hf.relate(width % heads == 0, "dim % n_heads == 0", dim=width, n_heads=heads)
    hf.read |= DROPOUTS
    hf.read |= {"sinusoidal_pos_embds"}  # how the table began; the checkpoint has it as it ended
    hf.fixed("tie_word_embeddings", True)
    hf.fixed("tie_weights_", True)
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True, causal=False)
    mlp = c.Mlp(hf.integer("hidden_dim"), hf.choice("activation", ACTS, "gelu"), gated=False, bias=True)
    cfg = c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order="post"),) * layers,
        eps=1e-12,
        norm="layer",
        positions=positions,
        embed_norm=True,
        final_norm=False,
        context=positions,
    )
    return encoder_fields.ending(cfg, not encoder_fields.bare(hf), pooler=False)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with a head if one is stored, whatever config.json says."""
    return encoder_fields.ending(cfg, "vocab_projector.bias" in names, pooler=False)


LAYER = "distilbert.transformer.layer.{i}"
RULES = (
    Rule("distilbert.embeddings.word_embeddings.*", "embed.*"),
    Rule("distilbert.embeddings.position_embeddings.*", "positions.*"),
    Rule("distilbert.embeddings.LayerNorm.*", "embed_norm.*"),
    *(Rule(f"{LAYER}.attention.{n}_lin.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}.attention.out_lin.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.sa_layer_norm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.ffn.lin1.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.ffn.lin2.*", "layers.{i}.ffn.down.*"),
    Rule(f"{LAYER}.output_layer_norm.*", "layers.{i}.ffn_norm.*"),
    Rule("vocab_transform.*", "transform.dense.*"),
    Rule("vocab_layer_norm.*", "transform.norm.*"),
    Rule("vocab_projector.*", "head.*"),
)


FAMILY = Family(
    config=config,
    rules=RULES,
    respell=prefixed("distilbert.", "vocab_"),
    resolve=resolve,
    architecture="DistilBertForMaskedLM",
)
