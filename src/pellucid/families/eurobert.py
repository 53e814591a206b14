"""EuroBERT (arXiv 2503.05500): Llama's blocks as an encoder, whose tokens see all others, of fifteen languages and code."""

from collections.abc import Container
from dataclasses import replace

from pellucid import config as c
from pellucid.families import encoder_fields, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import prefixed

SILENT = "bos_token classifier_pooling clf_pooling eos_token mask_token pad_token"  # texts of special ids; heads that sort texts


def config(hf: Fields) -> c.Config:
    hf.read |= set(SILENT.split())
    cfg = llama.config(hf, causal=False, eps=1e-5)
    return headed(replace(cfg, head_bias=hf.flag("mlp_bias", False)), not encoder_fields.bare(hf))


def headed(cfg: c.Config, head: bool) -> c.Config:
    """Return `cfg` with its head, or without one."""
    return cfg if head else replace(cfg, head=False, head_bias=False, tied=False)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` without a head if none is stored, whatever config.json says."""
    return headed(cfg, cfg.tied or "lm_head.weight" in names)


FAMILY = Family(
    config=config,
    rules=llama.RULES,
    ignored=llama.IGNORED,
    respell=prefixed("model.", "lm_head."),
    resolve=resolve,
    architecture="EuroBertForMaskedLM",
)
