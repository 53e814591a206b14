"""XLM-RoBERTa-XL and XXL (arXiv 2105.00572): XLM-RoBERTa with norms before each part, and one more behind all instead of the first."""

from pellucid import config as c
from pellucid.families import encoder_fields, roberta
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

UNSAID = {"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1}  # of a file that says nothing


def config(hf: Fields) -> c.Config:
    hf.values = {**UNSAID, **hf.values}
    return encoder_fields.norms_first(roberta.config(hf), entry=False)


NORMS = (
    Rule("roberta.encoder.layer.{i}.attention.self_attn_layer_norm.*", "layers.{i}.attn_norm.*"),
    Rule("roberta.encoder.layer.{i}.LayerNorm.*", "layers.{i}.ffn_norm.*"),
    Rule("roberta.encoder.LayerNorm.*", "norm.*"),
)

FAMILY = Family(
    config=config,
    rules=(*NORMS, *roberta.RULES),
    ignored=roberta.ignored,
    copies=roberta.COPIES,
    respell=roberta.respell,
    resolve=roberta.resolve,
    architecture="XLMRobertaXLForMaskedLM",
)
