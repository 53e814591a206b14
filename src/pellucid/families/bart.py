"""BART (arXiv 1910.13461): Marian's block with learned positions from the third row on, and a norm of what enters each side."""

from pellucid import config as c
from pellucid.families import marian
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

OFFSET = 2  # rows before that of the first position


def config(hf: Fields) -> c.Config:
    return marian.pair(hf, "post", (False, False, True), offset=OFFSET, embed_norm=True)


ENTRY = tuple(
    Rule(f"model.{side}.{theirs}.*", f"{side}.{ours}.*")
    for side in ("encoder", "decoder")
    for theirs, ours in (("embed_positions", "positions"), ("layernorm_embedding", "embed_norm"))
)
RULES = (*marian.RULES, *ENTRY)


FAMILY = Family(
    config=config,
    rules=RULES,
    copies=marian.COPIES,
    respell=marian.respell,
    resolve=marian.resolve,
    architecture="BartForConditionalGeneration",
)
