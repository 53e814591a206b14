"""MPT (MosaicML, 2023): GPT-2 without a bias anywhere, with a bias that falls with distance instead of positions."""

from pellucid import config as c
from pellucid.families import gpt2
from pellucid.families.family import Family
from pellucid.families.fields import HARMLESS, Fields
from pellucid.families.names import SPLIT, Rule

# of training and of kernels, and of positions that a bias by distance replaces
SILENT = {"emb_pdrop", "learned_pos_emb", "init_config", "init_device", "tokenizer_name", "verbose"}


def attention(hf: Fields, width: int) -> c.Attention:
    heads = hf.integer("n_heads")
    hf.relate(width % heads == 0, "d_model % n_heads == 0", d_model=width, n_heads=heads)
    hf.relate(heads & (heads - 1) == 0, "n_heads is a power of 2", n_heads=heads)  # else its slopes are not those of the paper
    clip = scale = None
    if (of_attention := hf.part("attn_config")) is not None:
        of_attention.read |= HARMLESS | {"attn_impl"}  # transformers writes the fields of a whole config here
        of_attention.fixed("attn_uses_sequence_id", False)
        of_attention.fixed("attn_type", "multihead_attention")
        of_attention.fixed("alibi", True)
        of_attention.fixed("alibi_bias_max", 8)
        of_attention.fixed("prefix_lm", False)
        of_attention.fixed("qk_ln", False)
        clip, scale = of_attention.optional("clip_qkv"), of_attention.optional("softmax_scale")
    return c.Attention(heads, heads, width // heads, scale=scale, alibi=c.Alibi(), clip=clip)


def config(hf: Fields) -> c.Config:
    width = hf.integer("d_model", 2048)
    hf.read |= SILENT
    hf.fixed("expansion_ratio", 4)
    hf.fixed("no_bias", True)
    hf.fixed("embedding_fraction", 1.0)
    hf.fixed("logit_scale")
    hf.fixed("norm_type", "low_precision_layernorm")
    return c.Config(
        vocab=hf.integer("vocab_size", 50368),
        width=width,
        layers=(c.Layer(attention(hf, width), c.Mlp(4 * width, "gelu", gated=False)),) * hf.integer("n_layers", 24, high=100_000),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer, no bias",
        context=hf.integer("max_seq_len", 2048),
    )


LAYER = "transformer.blocks.{i}"
RULES = (
    Rule("transformer.wte.*", "embed.*"),
    Rule(f"{LAYER}.norm_1.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.attn.Wqkv.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), SPLIT),
    Rule(f"{LAYER}.attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.norm_2.*", "layers.{i}.ffn_norm.*"),
    Rule(f"{LAYER}.ffn.up_proj.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.ffn.down_proj.*", "layers.{i}.ffn.down.*"),
    Rule("transformer.norm_f.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)

FAMILY = Family(config=config, rules=RULES, respell=gpt2.respell, architecture="MptForCausalLM", does_more=("ffn",))
