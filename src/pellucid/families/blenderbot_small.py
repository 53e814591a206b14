"""Blenderbot Small (arXiv 2004.13637), of 90 million parameters: BART whose decoder adds its positions behind the norm of its embedding."""

from pellucid import config as c
from pellucid.families import bart, marian
from pellucid.families.family import Family
from pellucid.families.fields import Fields

UNSAID = {"decoder_start_token_id": 1, "max_position_embeddings": 512}  # of a file that says nothing


def config(hf: Fields) -> c.Config:
    hf.values = {**UNSAID, **hf.values}
    hf.fixed("layernorm_variant", "xlm")
    hf.fixed("do_blenderbot_90_layernorm", True)
    hf.fixed("extra_layer_norm", False)
    return marian.pair(hf, "post", (False, False, True), embed_norm=True, norm_first=True)


FAMILY = Family(
    config=config,
    rules=bart.RULES,
    copies=marian.COPIES,
    respell=marian.respell,
    resolve=marian.resolve,
    architecture="BlenderbotSmallForConditionalGeneration",
)
