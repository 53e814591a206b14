"""BioGPT (arXiv 2210.10341): a GPT-2 of medical papers, with positions from the third row on and an embedding times √width."""

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

OFFSET = 2  # rows before that of the first position


def config(hf: Fields) -> c.Config:
    """Return the Config. `layer_norm_eps` is read by nothing: transformers' norms have torch's own."""
    width, heads = hf.integer("hidden_size", 1024), hf.integer("num_attention_heads", 16)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    hf.read |= {"layer_norm_eps", "layerdrop", "activation_dropout"}
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True)
    mlp = c.Mlp(hf.integer("intermediate_size", 4096), hf.choice("hidden_act", ACTS, "gelu"), gated=False, bias=True)
    positions = hf.integer("max_position_embeddings", 1024)
    return c.Config(
        vocab=hf.integer("vocab_size", 42384),
        width=width,
        layers=(c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", 24, high=100_000),
        tied=hf.flag("tie_word_embeddings", True),
        norm="layer",
        positions=positions,
        offset=OFFSET,
        embed_scale=width**0.5 if hf.flag("scale_embedding", True) else 1.0,
        context=positions,
    )


LAYER = "biogpt.layers.{i}"
RULES = (
    Rule("biogpt.embed_tokens.*", "embed.*"),
    Rule("biogpt.embed_positions.*", "positions.*"),
    *(Rule(f"{LAYER}.self_attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}.self_attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.self_attn_layer_norm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.fc1.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.fc2.*", "layers.{i}.ffn.down.*"),
    Rule(f"{LAYER}.final_layer_norm.*", "layers.{i}.ffn_norm.*"),
    Rule("biogpt.layer_norm.*", "norm.*"),
    Rule("output_projection.*", "head.*"),
)

FAMILY = Family(config=config, rules=RULES, respell=prefixed("biogpt.", "output_projection."), architecture="BioGptForCausalLM")
