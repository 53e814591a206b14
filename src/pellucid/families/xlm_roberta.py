"""XLM-RoBERTa (arXiv 1911.02116), and what was trained from it (E5, BGE-M3): RoBERTa with 250,000 pieces of a hundred languages."""

from pellucid.families import roberta
from pellucid.families.family import Family

FAMILY = Family(
    config=roberta.config,
    rules=roberta.RULES,
    ignored=roberta.ignored,
    copies=roberta.COPIES,
    respell=roberta.respell,
    resolve=roberta.resolve,
    architecture="XLMRobertaForMaskedLM",
)
