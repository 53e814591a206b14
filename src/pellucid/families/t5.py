"""T5 and T5 v1.1 (arXiv 1910.10683): encoder and decoder, a learned bias by distance shared by all layers, no scale in attention."""

from collections.abc import Container
from dataclasses import replace

from pellucid import config as c
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

FORWARDS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-relu": ("relu", True),
    "gated-silu": ("silu", True),
}


def config(hf: Fields) -> c.Config:
    tied = hf.flag("tie_word_embeddings", True)
    cfg = transfer(hf, "relu")
    return replace(cfg, tied=tied, logit_scale=cfg.width**-0.5 if hf.flag("scale_decoder_outputs", tied) else 1.0)


def transfer(hf: Fields, forward: str) -> c.Config:
    """Return the Config that T5's fields describe, with an untied head. forward: the feed-forward part of a file that does not say."""
    width, heads, layers = hf.integer("d_model"), hf.integer("num_heads"), hf.integer("num_layers", high=100_000)
    depth, vocab = hf.integer("num_decoder_layers", layers, high=100_000), hf.integer("vocab_size")
    count, reach = hf.integer("relative_attention_num_buckets", 32, low=4), hf.integer("relative_attention_max_distance", 128)
    relation = "relative_attention_max_distance > relative_attention_num_buckets / 2"
    hf.relate(reach > count // 2, relation, reach=reach, buckets=count)
    act, gated = hf.choice("feed_forward_proj", FORWARDS, forward)
    hf.read |= {"dense_act_fn", "is_gated_act"}  # told again by feed_forward_proj
    hf.read |= {"n_positions"}  # the length in training; a bias by distance knows no last position

    def attn(causal: bool, buckets: c.Buckets | None = None) -> c.Attention:
        return c.Attention(heads, heads, hf.integer("d_kv"), scale=1.0, causal=causal, buckets=buckets)

    mlp = c.Mlp(hf.integer("d_ff"), act, gated)
    return c.Config(
        vocab=vocab,
        width=width,
        layers=(c.Layer(attn(True, c.Buckets(count, reach, False)), mlp, cross=attn(False)),) * depth,
        eps=hf.number("layer_norm_epsilon", 1e-6),
        encoder=(c.Layer(attn(False, c.Buckets(count, reach, True)), mlp),) * layers,
        starts=next((i for name in ("decoder_start_token_id", "pad_token_id") for i in hf.ids(name) if 0 <= i < vocab), 0),
    )


def stack(side: str, ffn: int, ways: dict[str, str]) -> tuple[Rule, ...]:
    """Return one side's table. ffn: the sub-layer of its feed-forward part, 1 in the encoder and 2 in the decoder."""
    block, ours = f"{side}.block.{{i}}.layer", f"{side}.layers.{{i}}"
    return (
        *(Rule(f"{block}.0.SelfAttention.{n}.*", f"{ours}.attn.{n}.*") for n in "qkvo"),
        Rule(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.*", f"{side}.layers.0.attn.relative.*"),
        Rule(f"{block}.0.layer_norm.*", f"{ours}.attn_norm.*"),
        *(Rule(f"{block}.{ffn}.DenseReluDense.{theirs}.*", f"{ours}.ffn.{n}.*") for n, theirs in ways.items()),
        Rule(f"{block}.{ffn}.layer_norm.*", f"{ours}.ffn_norm.*"),
        Rule(f"{side}.final_layer_norm.*", f"{side}.norm.*"),
    )


CROSS = (
    *(Rule(f"decoder.block.{{i}}.layer.1.EncDecAttention.{n}.*", f"decoder.layers.{{i}}.cross.{n}.*") for n in "qkvo"),
    Rule("decoder.block.{i}.layer.1.layer_norm.*", "decoder.layers.{i}.cross_norm.*"),
)


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the table. Without a gate the way up is called wi."""
    ffn = cfg.layers[0].ffn
    ways = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if ffn.gated else {"up": "wi", "down": "wo"}
    return (Rule("shared.*", "embed.*"), *stack("encoder", 1, ways), *stack("decoder", 2, ways), *CROSS, Rule("lm_head.*", "head.*"))


IGNORED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # written by an old script, never read
COPIES = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with an untied head if one is stored: v1.1's files do not say."""
    return replace(cfg, tied="lm_head.weight" not in names)


FAMILY = Family(
    config=config,
    rules=rules,
    ignored=IGNORED,
    copies=COPIES,
    resolve=resolve,
    architecture="T5ForConditionalGeneration",
)
