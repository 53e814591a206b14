"""mBART (arXiv 2001.08210, 2008.00401), 25 or 50 languages: BART with norms before each part, and one more behind each side."""

from pellucid import config as c
from pellucid.families import bart, marian
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    return marian.pair(hf, "pre", (True, True, True), offset=bart.OFFSET, embed_norm=True)


LAST = tuple(Rule(f"model.{side}.layer_norm.*", f"{side}.norm.*") for side in ("encoder", "decoder"))

FAMILY = Family(
    config=config,
    rules=(*bart.RULES, *LAST),
    copies=marian.COPIES,
    respell=marian.respell,
    resolve=marian.resolve,
    architecture="MBartForConditionalGeneration",
)
