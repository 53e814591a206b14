"""Llama 4 as it is published, with eyes (Scout and Maverick, 2025): its text model alone."""

from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import llama4_text, within
from pellucid.families.fields import Fields

WITHIN = "llama4_text"


def config(hf: Fields) -> c.Config:
    text = within.text(hf, WITHIN, {})
    hf.fixed("tie_word_embeddings", text.flag("tie_word_embeddings", False))
    return llama4_text.config(text)


def written(hf: Mapping[str, Any]) -> dict[str, Any]:
    return within.file(hf, WITHIN, llama4_text.ARCHITECTURE, {})


respell = within.respell
RULES = llama4_text.RULES
IGNORED = (*llama4_text.IGNORED, within.SEEING)
