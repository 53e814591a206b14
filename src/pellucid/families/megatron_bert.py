"""Megatron-BERT (arXiv 1909.08053): BERT with norms before each part, and one more behind all instead of that of the embedding."""

from pellucid import config as c
from pellucid.families import bert, encoder_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed


def config(hf: Fields) -> c.Config:
    return encoder_fields.norms_first(bert.config(hf), entry=False)


NORMS = (
    Rule("bert.encoder.layer.{i}.attention.ln.*", "layers.{i}.attn_norm.*"),
    Rule("bert.encoder.layer.{i}.ln.*", "layers.{i}.ffn_norm.*"),
    Rule("bert.encoder.ln.*", "norm.*"),
)

FAMILY = Family(
    config=config,
    rules=(*NORMS, *bert.RULES),
    ignored=bert.ignored,
    copies=bert.COPIES,
    respell=prefixed("bert.", "cls."),
    resolve=bert.resolve,
    architecture="MegatronBertForMaskedLM",
)
