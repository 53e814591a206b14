"""CamemBERT (arXiv 1911.03894): RoBERTa for French."""

from pellucid.families import roberta
from pellucid.families.family import Family

FAMILY = Family(
    config=roberta.config,
    rules=roberta.RULES,
    ignored=roberta.ignored,
    copies=roberta.COPIES,
    respell=roberta.respell,
    resolve=roberta.resolve,
    architecture="CamembertForMaskedLM",
)
