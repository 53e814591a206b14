"""RoBERTa-PreLayerNorm (fairseq, 2019; arXiv 2202.08005): RoBERTa with norms before each part, and one more behind all."""

from pellucid import config as c
from pellucid.families import encoder_fields, roberta
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

NAME = "roberta_prelayernorm"


def config(hf: Fields) -> c.Config:
    return encoder_fields.norms_first(roberta.config(hf))


NORMS = (
    Rule(f"{NAME}.encoder.layer.{{i}}.attention.LayerNorm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{NAME}.encoder.layer.{{i}}.intermediate.LayerNorm.*", "layers.{i}.ffn_norm.*"),
    Rule(f"{NAME}.LayerNorm.*", "norm.*"),
)

FAMILY = Family(
    config=config,
    rules=(*NORMS, *encoder_fields.stack(NAME), *roberta.HEAD),
    ignored=roberta.ignoring(NAME),
    copies=roberta.COPIES,
    respell=prefixed(f"{NAME}.", "lm_head."),
    resolve=roberta.resolving(NAME),
    architecture="RobertaPreLayerNormForMaskedLM",
)
