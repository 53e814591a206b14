"""The text model within a model that also sees: its fields stand under `text_config`, and what is saved of it is a text model's folder.

What sees pictures is left aside: its fields, and its tensors, which lie beside the text model's.
"""

import re
from collections.abc import Mapping
from typing import Any

from pellucid.families.fields import Fields

SIGHT = {"vision_config", "boi_token_index", "eoi_token_index", "image_token_index"}
SEEING = r"(model\.)?(vision_tower|vision_model|multi_modal_projector)\..*"


def text(hf: Fields, kind: str, silent: Mapping[str, Any]) -> Fields:
    """The fields of the text model, a family of its own. silent: what its files leave out, and mean.

    Special token ids are the whole's, or where that has none, the text model's.
    """
    hf.get("text_config")
    inner = hf.part("text_config")
    assert inner is not None
    inner.values = {**silent, **inner.values}
    inner.fixed("model_type", kind)
    hf.values = ids(inner.values) | dict(hf.values)
    hf.read |= SIGHT
    return inner


def ids(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k.endswith("_token_id") and v is not None}


def file(hf: Mapping[str, Any], kind: str, architecture: str, silent: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the text model alone."""
    return {"architectures": [architecture], "model_type": kind, **silent, **hf["text_config"], **ids(hf)}


def respell(name: str) -> str:
    """Old files put the whole text model under language_model, new ones its inner part."""
    return re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", name).removeprefix("language_model.")
