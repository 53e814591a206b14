"""UMT5 (arXiv 2304.09151): mT5 in which each layer has a table of its own for the bias by distance."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import t5
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def own(layers: tuple[c.Layer, ...]) -> tuple[c.Layer, ...]:
    """Return these layers, each with a table of its own."""
    out = []
    for layer in layers:
        attn: Any = layer.attn
        out.append(replace(layer, attn=replace(attn, buckets=replace(attn.buckets, own=True))))
    return tuple(out)


def config(hf: Fields) -> c.Config:
    """Return the Config. A file with a tied head scales its logits, as T5; the published ones have neither."""
    cfg, tied = t5.transfer(hf, "gated-gelu"), hf.flag("tie_word_embeddings", True)
    assert cfg.encoder is not None
    scale = cfg.width**-0.5 if hf.flag("scale_decoder_outputs", tied) else 1.0  # older files say it by the tied head
    return replace(cfg, layers=own(cfg.layers), encoder=own(cfg.encoder), tied=tied, logit_scale=scale)


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return T5's table, with a table of biases in each block."""
    names = {side: f"{side}.block.{{}}.layer.0.SelfAttention.relative_attention_bias.*" for side in ("encoder", "decoder")}
    shared = {name.format(0) for name in names.values()}
    tables = (Rule(name.format("{i}"), f"{side}.layers.{{i}}.attn.relative.*") for side, name in names.items())
    return (*(rule for rule in t5.rules(cfg) if rule.disk not in shared), *tables)


FAMILY = Family(
    config=config,
    rules=rules,
    copies=t5.COPIES,
    resolve=t5.resolve,
    architecture="UMT5ForConditionalGeneration",
)
