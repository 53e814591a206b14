"""M2M-100 and NLLB (arXiv 2010.11125, 2207.04672), 100 and 200 languages: PEGASUS with fairseq's waves, which begin behind the padding."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import marian, mbart
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    """Return the Config. The scale of the embedding is on where a file does not say."""
    offset = hf.integer("pad_token_id", 1, low=0) + 1
    cfg = marian.pair(hf, "pre", (True, True, False), "relu", sinusoids=True, last_wave=True, offset=offset)
    return replace(cfg, head_bias=False, embed_scale=cfg.width**0.5 if hf.flag("scale_embedding", True) else 1.0)


FAMILY = Family(
    config=config,
    rules=(*marian.RULES, *mbart.LAST),
    ignored=(r"model\.(en|de)coder\.embed_positions\.weights?",),
    copies=marian.COPIES,
    respell=marian.respell,
    architecture="M2M100ForConditionalGeneration",
)
