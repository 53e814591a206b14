"""Gemma 4 12B, multimodal (2026): its text model."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import gemma4, gemma4_unified_text, llama, multimodal
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "gemma4_unified_text"


def config(hf: Fields) -> c.Config:
    return gemma4_unified_text.config(gemma4.text(hf, TEXT_MODEL))


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.file(hf, TEXT_MODEL, gemma4_unified_text.FAMILY.architecture, {})


FAMILY = Family(
    config=config,
    rules=gemma4_unified_text.FAMILY.rules,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS, gemma4.OTHER_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
