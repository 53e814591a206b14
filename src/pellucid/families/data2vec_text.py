"""data2vec's text model (arXiv 2202.03555), trained to give a teacher's rows: RoBERTa by another name."""

from pellucid.families import encoder_fields, roberta
from pellucid.families.family import Family
from pellucid.families.names import prefixed

NAME = "data2vec_text"

FAMILY = Family(
    config=roberta.config,
    rules=(*encoder_fields.stack(NAME), *roberta.HEAD),
    ignored=roberta.ignoring(NAME),
    copies=roberta.COPIES,
    respell=prefixed(f"{NAME}.", "lm_head."),
    resolve=roberta.resolving(NAME),
    architecture="Data2VecTextForMaskedLM",
)
