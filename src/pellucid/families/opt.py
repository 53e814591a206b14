"""OPT (arXiv 2205.01068): learned positions from the third row on, a ReLU network; in its second smallest model the norms come after the
sums, and the embedding is half as wide as the model.
"""

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

OFFSET = 2  # rows before that of the first position


def config(hf: Fields) -> c.Config:
    width, heads, layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("num_hidden_layers", high=100_000)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    hf.fixed("layer_norm_elementwise_affine", True)
    hf.read |= {"layerdrop", "activation_dropout"}
    bias, before = hf.flag("enable_bias", True), hf.flag("do_layer_norm_before", True)
    last = not hf.flag("_remove_final_layer_norm", False)
    attn = c.Attention(heads, heads, width // heads, bias=bias, out_bias=bias)
    mlp = c.Mlp(hf.integer("ffn_dim"), hf.choice("activation_function", ACTS, "relu"), gated=False, bias=bias)
    positions, narrow = hf.integer("max_position_embeddings", 2048), hf.integer("word_embed_proj_dim", width)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order="pre" if before else "post"),) * layers,
        tied=hf.flag("tie_word_embeddings", True),
        norm="layer",
        positions=positions,
        offset=OFFSET,
        embed_width=None if narrow == width else narrow,
        final_norm=before and last,
        context=positions,
    )


LAYER = "model.decoder.layers.{i}"
RULES = (
    Rule("model.decoder.embed_tokens.*", "embed.*"),
    Rule("model.decoder.embed_positions.*", "positions.*"),
    Rule("model.decoder.project_in.*", "widen.*"),
    *(Rule(f"{LAYER}.self_attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}.self_attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.self_attn_layer_norm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.fc1.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.fc2.*", "layers.{i}.ffn.down.*"),
    Rule(f"{LAYER}.final_layer_norm.*", "layers.{i}.ffn_norm.*"),
    Rule("model.decoder.final_layer_norm.*", "norm.*"),
    Rule("model.decoder.project_out.*", "narrow.*"),
    Rule("lm_head.*", "head.*"),
)


def respell(name: str) -> str:
    """Return a name with the prefix that Meta's own files leave out."""
    return f"model.{name}" if name.startswith("decoder.") else name


FAMILY = Family(config=config, rules=RULES, respell=respell, architecture="OPTForCausalLM")
