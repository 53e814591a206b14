"""BLOOM (arXiv 2211.05100): no table of positions but a bias that falls with distance, a norm of the embedding, queries, keys and values
of a head side by side on disk.
"""

from pellucid import config as c
from pellucid.families import gpt2
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, grouped

# Of its training, and of the kernels it ran there.
TRAINING = {"attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "skip_bias_add",
            "skip_bias_add_qkv"}  # fmt: skip


def config(hf: Fields) -> c.Config:
    hf.read |= TRAINING
    hf.fixed("slow_but_exact", False)  # with it transformers leaves two biases out
    hf.fixed("apply_residual_connection_post_layernorm", False)
    width, heads = hf.either("n_embed", "hidden_size"), hf.either("n_head", "num_attention_heads")
    layers = hf.either("n_layer", "num_hidden_layers", high=100_000)
    hf.relate(width % heads == 0, "hidden_size % n_head == 0", hidden_size=width, n_head=heads)
    hf.fixed("n_inner", 4 * width)
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True, alibi=c.Alibi())
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, c.Mlp(4 * width, "gelu_bloom", gated=False, bias=True)),) * layers,
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        embed_norm=True,
        context=hf.maybe("seq_length"),
    )


def megatron(groups: int) -> tuple[Rule, ...]:
    """Return the names that all descendants of Megatron-LM share: everything but the norms of a layer."""
    return (
        Rule("transformer.word_embeddings.*", "embed.*"),
        Rule("transformer.h.{i}.self_attention.query_key_value.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), grouped(groups)),
        Rule("transformer.h.{i}.self_attention.dense.*", "layers.{i}.attn.o.*"),
        Rule("transformer.h.{i}.mlp.dense_h_to_4h.*", "layers.{i}.ffn.up.*"),
        Rule("transformer.h.{i}.mlp.dense_4h_to_h.*", "layers.{i}.ffn.down.*"),
        Rule("transformer.ln_f.*", "norm.*"),
        Rule("lm_head.*", "head.*"),
    )


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (
        *megatron(cfg.layers[0].attn.heads),
        Rule("transformer.word_embeddings_layernorm.*", "embed_norm.*"),
        Rule("transformer.h.{i}.input_layernorm.*", "layers.{i}.attn_norm.*"),
        Rule("transformer.h.{i}.post_attention_layernorm.*", "layers.{i}.ffn_norm.*"),
    )


FAMILY = Family(
    config=config,
    rules=rules,
    respell=gpt2.respell,
    architecture="BloomForCausalLM",
    does_more=("attn", "ffn"),
)
