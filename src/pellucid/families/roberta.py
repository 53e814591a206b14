"""RoBERTa (arXiv 1907.11692): BERT whose positions begin behind the padding token's row, with a head of other names."""

from collections.abc import Container
from dataclasses import replace

from pellucid import config as c
from pellucid.families import bert, encoder_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed


def config(hf: Fields) -> c.Config:
    rows, first = hf.integer("max_position_embeddings", 512), hf.integer("pad_token_id", 1, low=0) + 1
    hf.relate(first < rows, "pad_token_id + 1 < max_position_embeddings", pad_token_id=first - 1, max_position_embeddings=rows)
    cfg = bert.config(hf)
    return exact(replace(cfg, positions=rows - first, offset=first, context=rows - first))


def exact(cfg: c.Config) -> c.Config:
    """Return `cfg` with the exact GELU in its head, whatever the blocks have."""
    return replace(cfg, transform="gelu" if cfg.head else None)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with a head if one is stored, whatever config.json says; else with a pooler if one is stored."""
    head = "lm_head.bias" in names
    return exact(encoder_fields.ending(cfg, head, not head and "roberta.pooler.dense.weight" in names))


def ignored(cfg: c.Config, names: Container[str]) -> tuple[str, ...]:
    """Return patterns of the position numbers, and of a pooler that the model lacks."""
    numbers = (r"roberta\.embeddings\.position_ids",)
    return numbers if cfg.pooler else (*numbers, r"roberta\.pooler\..*")


HEAD = (
    Rule("lm_head.dense.*", "transform.dense.*"),
    Rule("lm_head.layer_norm.*", "transform.norm.*"),
    Rule("lm_head.decoder.weight", "head.weight"),
    Rule("lm_head.bias", "head.bias"),
)
RULES = (*encoder_fields.stack("roberta"), *HEAD)
COPIES = {"lm_head.decoder.bias": "lm_head.bias"}
respell = prefixed("roberta.", "lm_head.")


FAMILY = Family(
    config=config,
    rules=RULES,
    ignored=ignored,
    copies=COPIES,
    respell=respell,
    resolve=resolve,
    architecture="RobertaForMaskedLM",
)
