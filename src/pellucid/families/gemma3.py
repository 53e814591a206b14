"""Gemma 3, multimodal (arXiv 2503.19786), 4B and larger: its text model."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import gemma3_text, llama, multimodal
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODEL = "gemma3_text"
SILENT = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}


def config(hf: Fields) -> c.Config:
    text = multimodal.text(hf, TEXT_MODEL, SILENT)
    for part in (hf, text):
        part.fixed("tie_word_embeddings", True)
    hf.read |= {"mm_tokens_per_image"}
    return gemma3_text.config(text)


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    return multimodal.file(hf, TEXT_MODEL, gemma3_text.FAMILY.architecture, SILENT)


FAMILY = Family(
    config=config,
    rules=gemma3_text.RULES,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=TEXT_MODEL,
)
