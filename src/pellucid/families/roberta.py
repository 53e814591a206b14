"""RoBERTa (arXiv 1907.11692): BERT whose positions begin behind the padding token's row, with a head of other names."""

from collections.abc import Callable, Container
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


def resolving(name: str) -> Callable[[c.Config, Container[str]], c.Config]:
    """Return a `Family.resolve`: a head if one is stored, whatever config.json says; else a pooler if one is stored."""

    def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
        head = "lm_head.bias" in names
        return exact(encoder_fields.ending(cfg, head, not head and f"{name}.pooler.dense.weight" in names))

    return resolve


def ignoring(name: str) -> Callable[[c.Config, Container[str]], tuple[str, ...]]:
    """Return a `Family.ignored`: the position numbers, and a pooler that the model lacks."""
    numbers = (rf"{name}\.embeddings\.position_ids",)
    return lambda cfg, names: numbers if cfg.pooler else (*numbers, rf"{name}\.pooler\..*")


HEAD = (
    Rule("lm_head.dense.*", "transform.dense.*"),
    Rule("lm_head.layer_norm.*", "transform.norm.*"),
    Rule("lm_head.decoder.weight", "head.weight"),
    Rule("lm_head.bias", "head.bias"),
)
RULES = (*encoder_fields.stack("roberta"), *HEAD)
COPIES = {"lm_head.decoder.bias": "lm_head.bias"}
resolve, ignored, respell = resolving("roberta"), ignoring("roberta"), prefixed("roberta.", "lm_head.")


FAMILY = Family(
    config=config,
    rules=RULES,
    ignored=ignored,
    copies=COPIES,
    respell=respell,
    resolve=resolve,
    architecture="RobertaForMaskedLM",
)
