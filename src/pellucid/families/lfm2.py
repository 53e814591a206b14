"""LFM2 (arXiv 2511.23404): gated short convolutions in most layers, Qwen3's attention in the others."""

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, TAPS, Rule

CONV, FULL = KINDS = ("conv", "full_attention")


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind: listed, or attention in `full_attn_idxs` alone, in all layers if that is missing too."""
    layers = hf.integer("num_hidden_layers", high=100_000)
    indices = hf.indices("full_attn_idxs", layers)
    full = indices if "full_attn_idxs" in hf else range(layers)
    if "layer_types" in hf:
        return hf.texts("layer_types", layers, KINDS)
    return [FULL if i in full else CONV for i in range(layers)]


def mixers(hf: Fields, kinds: list[str]) -> list[c.AnyAttention]:
    """Return what mixes the rows of each layer, by its kind."""
    hf.maybe("num_key_value_heads", stated=True)
    attn = llama.attention(hf, qk_norm=True, theta=1e6)
    conv = c.ShortConv(hf.integer("conv_L_cache", 3, high=4096), hf.flag("conv_bias", False))
    return [conv if kind == CONV else attn for kind in kinds]


def mlp(hf: Fields) -> c.Mlp:
    """Return the feed-forward part, two thirds as wide as the file says and rounded up, unless it says that its number is final."""
    width = hf.integer("block_ff_dim", hf.integer("intermediate_size", 12288))
    if hf.flag("block_auto_adjust_ff_dim", True):
        width, multiple = int(2 * width / 3), hf.integer("block_multiple_of", 256)
        width = int(width * hf.number("block_ffn_dim_multiplier", 1.0))
        width = -(-width // multiple) * multiple
        hf.relate(0 < width < 2**31, "0 < int(2 · intermediate_size / 3) · block_ffn_dim_multiplier < 2^31", width=width)
    hf.read |= {"block_multiple_of", "block_ffn_dim_multiplier"}
    return c.Mlp(width)


def decoder(hf: Fields, layers: tuple[c.Layer, ...]) -> c.Config:
    """Return the Config around `layers`, from LFM2's own names of Llama's fields."""
    width = hf.integer("hidden_size")
    hf.read |= {"block_use_xavier_init", "conv_use_xavier_init", "block_mlp_init_scale", "block_out_init_scale"}  # of training
    for name in ("block_dim", "conv_dim", "conv_dim_out"):
        hf.fixed(name, width)
    for name in ("block_use_swiglu", "use_pos_enc"):
        hf.fixed(name, True)
    hf.fixed("num_heads", hf.integer("num_attention_heads"))
    hf.fixed("block_norm_eps", hf.number("norm_eps", 1e-5))
    return c.Config(
        vocab=hf.integer("vocab_size", 65536),
        width=width,
        layers=layers,
        tied=hf.flag("tie_embedding", hf.flag("tie_word_embeddings", True)),
        eps=hf.number("norm_eps", 1e-5),
        context=hf.maybe("max_position_embeddings"),
    )


def config(hf: Fields) -> c.Config:
    return decoder(hf, tuple(c.Layer(mixer, mlp(hf)) for mixer in mixers(hf, kinds(hf))))


LAYER = "model.layers.{i}."
MIXERS = (
    *(Rule(f"{LAYER}operator_norm.*", f"layers.{{i}}.{part}_norm.*") for part in ("attn", "conv")),
    *(Rule(f"{LAYER}self_attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}self_attn.out_proj.*", "layers.{i}.attn.o.*"),
    *(Rule(f"{LAYER}self_attn.{n}_layernorm.*", f"layers.{{i}}.attn.{n}_norm.*") for n in "qk"),
    Rule(f"{LAYER}conv.in_proj.*", tuple(f"layers.{{i}}.conv.{n}.*" for n in "bcx"), SPLIT),
    Rule(f"{LAYER}conv.out_proj.*", "layers.{i}.conv.o.*"),
    Rule(f"{LAYER}conv.conv.weight", "layers.{i}.conv.kernel", TAPS),
    Rule(f"{LAYER}conv.conv.bias", "layers.{i}.conv.kernel_bias"),
    Rule(f"{LAYER}ffn_norm.*", "layers.{i}.ffn_norm.*"),
)
WAYS = {"gate": "w1", "up": "w3", "down": "w2"}
DENSE = tuple(Rule(f"{LAYER}feed_forward.{w}.weight", f"layers.{{i}}.ffn.{n}.weight") for n, w in WAYS.items())
ENDS = (Rule("model.embed_tokens.*", "embed.*"), Rule("model.embedding_norm.*", "norm.*"), Rule("lm_head.*", "head.*"))
RULES = (*ENDS, *MIXERS, *DENSE)

FAMILY = Family(config=config, rules=RULES, architecture="Lfm2ForCausalLM")
