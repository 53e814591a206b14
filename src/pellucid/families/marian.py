"""Marian (arXiv 1804.00344), 1,400 language pairs: the encoder-decoder of 2017, with sinusoids, norms after the sums, one shared table."""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import ROW, Rule, prefixed

# what trains, and what Marian's class has never read: the files of 2020 have the size of their vocabulary as extra_pos_embeddings
SILENT = {
    *("activation_dropout", "classif_dropout", "decoder_layerdrop", "encoder_layerdrop", "static_position_embeddings"),
    *("extra_pos_embeddings", "classifier_dropout", "gradient_checkpointing", "force_bos_token_to_be_generated"),
}
# how the files of 2020 say where norms stand; each class has them in one way
NORMS = ("add_final_layer_norm", "normalize_before", "normalize_embedding")


def pair(hf: Fields, order: str, norms: Iterable[bool], act: str = "gelu", **more: Any) -> c.Config:
    """Return an encoder and a decoder that share one table. norms: the values of NORMS that an old file may have.  more: of the Config.

    act: of a file that does not say.
    """
    hf.read |= SILENT
    hf.fixed("add_bias_logits", False)
    for name, value in zip(NORMS, norms, strict=True):
        hf.fixed(name, value)
    hf.fixed("tie_word_embeddings", True)
    width, vocab, forward = hf.integer("d_model"), hf.integer("vocab_size"), hf.choice("activation_function", ACTS, act)

    def stack(side: str) -> tuple[c.Layer, ...]:
        """Return one side's blocks; a decoder's are causal and attend to the encoder."""
        heads = hf.integer(f"{side}_attention_heads")
        hf.relate(width % heads == 0, f"d_model % {side}_attention_heads == 0", d_model=width, heads=heads)
        masked, unmasked = (c.Attention(heads, heads, width // heads, bias=True, out_bias=True, causal=causal) for causal in (True, False))
        mlp = c.Mlp(hf.integer(f"{side}_ffn_dim"), forward, gated=False, bias=True)
        layer = c.Layer(masked, mlp, unmasked, order) if side == "decoder" else c.Layer(unmasked, mlp, order=order)
        return (layer,) * hf.integer(f"{side}_layers", high=100_000)

    layers, positions = hf.integer("encoder_layers"), hf.integer("max_position_embeddings", 1024)
    hf.fixed("num_hidden_layers", layers)
    return c.Config(
        vocab=vocab,
        width=width,
        layers=stack("decoder"),
        tied=True,
        norm="layer",
        positions=positions,
        encoder=stack("encoder"),
        embed_scale=width**0.5 if hf.flag("scale_embedding", False) else 1.0,
        final_norm=order == "pre",
        head_bias=True,
        context=positions,
        starts=next((i for name in ("decoder_start_token_id", "pad_token_id") for i in hf.ids(name) if 0 <= i < vocab), vocab - 1),
        **more,
    )


def config(hf: Fields) -> c.Config:
    hf.fixed("share_encoder_decoder_embeddings", True)
    hf.fixed("decoder_vocab_size", hf.integer("vocab_size"))
    return pair(hf, "post", (False, False, False), sinusoids=True)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return the Config without a bias of the head where none is stored."""
    return cfg if "final_logits_bias" in names else replace(cfg, head_bias=False)


def stack(side: str) -> tuple[Rule, ...]:
    """Return one side's table."""
    theirs, ours = f"model.{side}.layers.{{i}}", f"{side}.layers.{{i}}"
    parts = {"attn": "self_attn", "cross": "encoder_attn"}
    return (
        *(Rule(f"{theirs}.{at}.{n}_proj.*", f"{ours}.{part}.{n}.*") for part, at in parts.items() for n in "qkv"),
        *(Rule(f"{theirs}.{at}.out_proj.*", f"{ours}.{part}.o.*") for part, at in parts.items()),
        *(Rule(f"{theirs}.{at}_layer_norm.*", f"{ours}.{part}_norm.*") for part, at in parts.items()),
        Rule(f"{theirs}.fc1.*", f"{ours}.ffn.up.*"),
        Rule(f"{theirs}.fc2.*", f"{ours}.ffn.down.*"),
        Rule(f"{theirs}.final_layer_norm.*", f"{ours}.ffn_norm.*"),
    )


RULES = (
    Rule("model.shared.*", "embed.*"),
    *stack("encoder"),
    *stack("decoder"),
    Rule("lm_head.weight", "head.weight"),
    Rule("final_logits_bias", "head.bias", ROW),
)
IGNORED = (r"model\.(en|de)coder\.embed_positions\.weight",)  # the sinusoids, which are computed
COPIES = {f"model.{side}.embed_tokens.weight": "model.shared.weight" for side in ("encoder", "decoder")}

respell = prefixed("model.", "lm_head.", "final_logits_bias")

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, copies=COPIES, respell=respell, resolve=resolve, architecture="MarianMTModel")
