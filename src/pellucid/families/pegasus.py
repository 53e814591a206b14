"""PEGASUS (arXiv 1912.08777), which writes summaries: Marian with norms before each part, and one more behind each side."""

from pellucid import config as c
from pellucid.families import marian, mbart
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    return marian.pair(hf, "pre", (True, True, False), sinusoids=True)


FAMILY = Family(
    config=config,
    rules=(*marian.RULES, *mbart.LAST),
    ignored=marian.IGNORED,
    copies=marian.COPIES,
    respell=marian.respell,
    resolve=marian.resolve,
    architecture="PegasusForConditionalGeneration",
)
