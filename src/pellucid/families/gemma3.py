"""Gemma 3 with eyes (arXiv 2503.19786), 4B and larger: its text model alone, whose fields stand under `text_config`.

What sees pictures is left aside, and what is saved of it is a text model's folder.
"""

import re
from collections.abc import Mapping
from typing import Any

from pellucid import config as c
from pellucid.families import gemma3_text
from pellucid.families.fields import Fields

SILENT = {  # what these files leave out, and mean
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
SIGHT = {"vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index"}


def config(hf: Fields) -> c.Config:
    hf.get("text_config")
    text = hf.part("text_config")
    assert text is not None
    text.values = SILENT | dict(text.values)
    text.fixed("model_type", "gemma3_text")
    for part in (hf, text):
        part.fixed("tie_word_embeddings", True)
    hf.read |= SIGHT
    return gemma3_text.config(text)


def written(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the text model alone."""
    ids = {k: v for k, v in hf.items() if k.endswith("_token_id")}
    return {"architectures": [gemma3_text.ARCHITECTURE], "model_type": "gemma3_text", **SILENT, **hf["text_config"], **ids}


def respell(name: str) -> str:
    """Old files put the whole text model under language_model, new ones its inner part."""
    return re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", name).removeprefix("language_model.")


RULES = gemma3_text.RULES
IGNORED = (*gemma3_text.IGNORED, r"(model\.)?(vision_tower|multi_modal_projector)\..*")
