"""mT5 (arXiv 2010.11934): T5 v1.1 in a hundred languages, whose logits nothing scales, with a head of its own or not."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import t5
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    return replace(t5.transfer(hf, "gated-gelu"), tied=hf.flag("tie_word_embeddings", True))


FAMILY = Family(
    config=config,
    rules=t5.rules,
    ignored=t5.IGNORED,
    copies=t5.COPIES,
    resolve=t5.resolve,
    architecture="MT5ForConditionalGeneration",
)
