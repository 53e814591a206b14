"""Gemma 4, multimodal (2026): its text model."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import gemma4_text, multimodal
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "gemma4_text"
OTHER_TENSORS = r"(model\.)?(audio_tower|embed_vision|embed_audio|vision_embedder)\..*"


def text(hf: Fields, kind: str) -> Fields:
    """Return the fields of the text model, whose model_type is `kind`."""
    inner = multimodal.text(hf, kind, {})
    for part in (hf, inner):
        part.fixed("tie_word_embeddings", True)
    hf.read |= {"vision_soft_tokens_per_image"}
    return inner


def config(hf: Fields) -> c.Config:
    return gemma4_text.config(text(hf, TEXT_MODEL))


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.file(hf, TEXT_MODEL, gemma4_text.FAMILY.architecture, {})


FAMILY = Family(
    config=config,
    rules=gemma4_text.rules,
    ignored=lambda cfg, names: (*gemma4_text.ignored(cfg, names), multimodal.VISION_TENSORS, OTHER_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
