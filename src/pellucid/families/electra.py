"""ELECTRA (arXiv 2003.10555): BERT whose embedding is narrower than its blocks. Its generator fills blanks; its discriminator, which most
load, gives rows, for its own head says which tokens were replaced.
"""

from collections.abc import Container
from dataclasses import replace

from pellucid import config as c
from pellucid.families import bert, encoder_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

SUMMARY = {"summary_last_dropout"}  # of a head that sorts texts


def config(hf: Fields) -> c.Config:
    hf.read |= SUMMARY
    cfg, narrow = bert.config(hf), hf.integer("embedding_size", 128)
    if narrow != cfg.width:
        cfg = replace(cfg, embed_width=narrow, narrow_entry=True)
    return ending(cfg, fills(hf))


def fills(hf: Fields) -> bool:
    """Return True if the class that wrote the file fills blanks, as the generator's does; a file that does not say is one of those."""
    names = hf.get("architectures", None)
    return not isinstance(names, list) or not names or str(names[0]).endswith("MaskedLM")


def ending(cfg: c.Config, head: bool) -> c.Config:
    """Return `cfg` with the generator's head, whose activation is always the exact GELU, or with none; there is no pooler."""
    cfg = encoder_fields.ending(cfg, head, pooler=False)
    return replace(cfg, transform="gelu" if head else None)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with a head if one is stored, whatever config.json says."""
    return ending(cfg, "generator_lm_head.bias" in names)


RULES = (
    *encoder_fields.stack("electra"),
    Rule("electra.embeddings_project.*", "widen.*"),
    Rule("generator_predictions.dense.*", "transform.dense.*"),
    Rule("generator_predictions.LayerNorm.*", "transform.norm.*"),
    Rule("generator_lm_head.*", "head.*"),
)
IGNORED = (r"electra\.embeddings\.position_ids", r"discriminator_predictions\..*")


FAMILY = Family(
    config=config,
    rules=RULES,
    ignored=IGNORED,
    respell=prefixed("electra.", "generator_", "discriminator_"),
    resolve=resolve,
    architecture="ElectraForMaskedLM",
)
