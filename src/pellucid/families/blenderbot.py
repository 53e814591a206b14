"""Blenderbot (arXiv 2004.13637): an encoder-decoder that talks, mBART without a norm of its embedding."""

from pellucid import config as c
from pellucid.families import bart, marian, mbart
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.fixed("layernorm_variant", "prelayernorm")
    hf.read |= {"do_blenderbot_90_layernorm"}  # where norms stood in the code of 2020
    hf.integer("max_position_embeddings")  # required: BART's default is another
    return marian.pair(hf, "pre", (True, True, False))


RULES = (*bart.RULES, *mbart.LAST)

FAMILY = Family(
    config=config,
    rules=RULES,
    copies=marian.COPIES,
    respell=marian.respell,
    resolve=marian.resolve,
    architecture="BlenderbotForConditionalGeneration",
)
