"""Llama 4, multimodal (Scout and Maverick, 2025): its text model."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import llama, llama4_text, multimodal
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "llama4_text"


def config(hf: Fields) -> c.Config:
    return multimodal.as_text_says(hf, TEXT_MODEL, llama4_text.config)


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.file(hf, TEXT_MODEL, llama4_text.FAMILY.architecture, {})


FAMILY = Family(
    config=config,
    rules=llama4_text.RULES,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
