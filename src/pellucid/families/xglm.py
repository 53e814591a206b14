"""XGLM (arXiv 2112.10668): a GPT in 30 languages, with fairseq's waves from the third row on and an embedding times √width."""

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

OFFSET = 2  # rows before that of the first position


def config(hf: Fields) -> c.Config:
    width, heads = hf.integer("d_model", 1024), hf.integer("attention_heads", 16)
    hf.relate(width % heads == 0, "d_model % attention_heads == 0", d_model=width, attention_heads=heads)
    hf.read |= {"layerdrop", "activation_dropout"}
    if hf.get("pad_token_id", 1) is not None:
        hf.integer("pad_token_id", 1, low=0, high=OFFSET - 1)  # transformers zeroes that row of the waves, which no position has
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True)
    mlp = c.Mlp(hf.integer("ffn_dim", 4096), hf.choice("activation_function", ACTS, "gelu"), gated=False, bias=True)
    positions = hf.integer("max_position_embeddings", 2048)
    return c.Config(
        vocab=hf.integer("vocab_size", 256008),
        width=width,
        layers=(c.Layer(attn, mlp),) * hf.integer("num_layers", 24, high=100_000),
        tied=hf.flag("tie_word_embeddings", True),
        norm="layer",
        positions=positions,
        sinusoids=True,
        last_wave=True,
        offset=OFFSET,
        embed_scale=width**0.5 if hf.flag("scale_embedding", True) else 1.0,
        context=positions,
    )


LAYER = "model.layers.{i}"
RULES = (
    Rule("model.embed_tokens.*", "embed.*"),
    *(Rule(f"{LAYER}.self_attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}.self_attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.self_attn_layer_norm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.fc1.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.fc2.*", "layers.{i}.ffn.down.*"),
    Rule(f"{LAYER}.final_layer_norm.*", "layers.{i}.ffn_norm.*"),
    Rule("model.layer_norm.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)
IGNORED = (r"model\.embed_positions\.weights",)  # the sinusoids, which are computed

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, architecture="XGLMForCausalLM")
