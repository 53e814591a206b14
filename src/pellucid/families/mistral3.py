"""Mistral Small 3.1 and later (2025), which see: their text model, a Mistral."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama, mistral, multimodal
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "mistral"
VISION = {"multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "vision_feature_layer"}


def config(hf: Fields) -> c.Config:
    text = multimodal.text(hf, TEXT_MODEL, {})
    hf.read |= VISION
    return replace(mistral.config(text), tied=hf.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False)))


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with an untied head if one is stored: published files do not say."""
    return replace(cfg, tied="lm_head.weight" not in names)


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.file(hf, TEXT_MODEL, mistral.FAMILY.architecture, {})


FAMILY = Family(
    config=config,
    rules=llama.RULES,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    resolve=resolve,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
