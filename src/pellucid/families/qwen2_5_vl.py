"""Qwen2.5-VL (arXiv 2502.13923), which sees: its text model, a Qwen2."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import llama, multimodal, qwen2
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "qwen2"
LEFT_OUT = 1e6, 1e-5  # the rope's base and the norms' epsilon, of files without them


def config(hf: Fields) -> c.Config:
    return multimodal.read_alone(hf, qwen2.config, *LEFT_OUT)


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.saved_alone(hf, TEXT_MODEL, qwen2.FAMILY.architecture, *LEFT_OUT)


FAMILY = Family(
    config=config,
    rules=llama.RULES,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
