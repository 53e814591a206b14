"""Qwen3.5 (2026), which sees: its text model."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import multimodal, qwen3_5_text, qwen3_next
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "qwen3_5_text"


def config(hf: Fields) -> c.Config:
    return multimodal.as_text_says(hf, TEXT_MODEL, qwen3_5_text.config)


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.file(hf, TEXT_MODEL, qwen3_5_text.FAMILY.architecture, {})


FAMILY = Family(
    config=config,
    rules=qwen3_5_text.rules,
    ignored=(*qwen3_next.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
