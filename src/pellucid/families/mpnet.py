"""MPNet (arXiv 2004.09297): RoBERTa without token types, with T5's biases of distance, which all layers share."""

from pellucid import config as c
from pellucid.families import encoder_fields, roberta
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

FIRST = 2  # the row of the first position: behind that of the padding token, which is 1 whatever the file says
BUCKETS = c.Buckets(32, 128, bidirectional=True)


def config(hf: Fields) -> c.Config:
    width, heads, rows = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("max_position_embeddings", 512)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    hf.relate(rows > FIRST, f"{FIRST} < max_position_embeddings", max_position_embeddings=rows)
    hf.fixed("relative_attention_num_buckets", BUCKETS.count)
    hf.fixed("tie_word_embeddings", True)
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True, causal=False, buckets=BUCKETS)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "gelu"), gated=False, bias=True)
    cfg = c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order="post"),) * hf.integer("num_hidden_layers", high=100_000),
        eps=hf.number("layer_norm_eps", 1e-12),
        norm="layer",
        positions=rows - FIRST,
        offset=FIRST,
        embed_norm=True,
        final_norm=False,
        context=rows - FIRST,
    )
    return roberta.exact(encoder_fields.ending(cfg, not encoder_fields.bare(hf), encoder_fields.bare(hf)))


LAYER = "mpnet.encoder.layer.{i}"
RULES = (
    *(Rule(f"{LAYER}.attention.attn.{n}.*", f"layers.{{i}}.attn.{n}.*") for n in "qkvo"),
    Rule(f"{LAYER}.attention.LayerNorm.*", "layers.{i}.attn_norm.*"),
    Rule("mpnet.encoder.relative_attention_bias.weight", "layers.0.attn.relative.weight"),
    *encoder_fields.stack("mpnet"),
    *roberta.HEAD,
)


FAMILY = Family(
    config=config,
    rules=RULES,
    ignored=roberta.ignoring("mpnet"),
    copies=roberta.COPIES,
    respell=prefixed("mpnet.", "lm_head."),
    resolve=roberta.resolving("mpnet"),
    architecture="MPNetForMaskedLM",
)
