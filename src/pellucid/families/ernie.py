"""ERNIE 1.0 to 3.0 (Baidu, arXiv 1904.09223, 2107.02137): BERT, since 2.0 with one more row, of the task that a text is of."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import bert, encoder_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed


def config(hf: Fields) -> c.Config:
    used, rows = hf.flag("use_task_id", False), hf.integer("task_type_vocab_size", 3)
    return replace(bert.config(hf), tasks=rows if used else None)


RULES = (
    *encoder_fields.stack("ernie"),
    Rule("ernie.embeddings.task_type_embeddings.*", "tasks.*"),
    *bert.HEAD,
)

FAMILY = Family(
    config=config,
    rules=RULES,
    ignored=bert.ignoring("ernie"),
    copies=bert.COPIES,
    respell=prefixed("ernie.", "cls."),
    resolve=bert.resolving("ernie"),
    architecture="ErnieForMaskedLM",
)
