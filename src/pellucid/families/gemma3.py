"""Gemma 3 with eyes (arXiv 2503.19786), 4B and larger: its text model alone."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import gemma3_text, within
from pellucid.families.fields import Fields

WITHIN = "gemma3_text"
SILENT = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}


def config(hf: Fields) -> c.Config:
    text = within.text(hf, WITHIN, SILENT)
    for part in (hf, text):
        part.fixed("tie_word_embeddings", True)
    hf.read |= {"mm_tokens_per_image"}
    return gemma3_text.config(text)


def written(hf: Mapping[str, Any]) -> dict[str, Any]:
    return within.file(hf, WITHIN, gemma3_text.ARCHITECTURE, SILENT)


respell = within.respell
RULES = gemma3_text.RULES
IGNORED = (*gemma3_text.IGNORED, within.SEEING)
