"""The text model of a multimodal checkpoint: its fields stand under `text_config`, and `save` writes a folder of the text model alone.

The vision part is not read: neither its fields nor its tensors, which lie beside the text model's.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pellucid.config import Config
from pellucid.families.fields import Fields

VISION_FIELDS = {"vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "image_token_id", "video_token_id"}
VISION_FIELDS |= {"vision_start_token_id", "vision_end_token_id", "vision_token_id"}
VISION_FIELDS |= {"boi_token_id", "eoi_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index", "audio_token_id", "audio_config"}
AXES, PLAIN = {"type", "rope_type", "rope_theta", "mrope_section", "mrope_interleaved"}, {"mrope", "default"}
VISION_TENSORS = r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector)\..*"


def text(hf: Fields, kind: str, silent: Mapping[str, Any]) -> Fields:
    """Return the fields of the text model, a family of its own. silent: the values of fields that its files leave out.

    Special token ids are the outer file's; where that has none, the text model's.
    """
    hf.get("text_config")
    inner = hf.part("text_config")
    assert inner is not None
    inner.values = {**silent, **inner.values}
    inner.fixed("model_type", kind)
    hf.values = ids(inner.values) | dict(hf.values)
    hf.read |= VISION_FIELDS
    return inner


def as_text_says(hf: Fields, kind: str, config: Callable[[Fields], Config]) -> Config:
    """Return the Config of the text model, by `config`, its family's. The whole file says of a tied head what the text model does."""
    inner = text(hf, kind, {})
    hf.fixed("tie_word_embeddings", inner.flag("tie_word_embeddings", False))
    return config(inner)


def ids(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special token ids of texts among these fields."""
    return {k: v for k, v in values.items() if k.endswith("_token_id") and v is not None and k not in VISION_FIELDS}


def file(hf: Mapping[str, Any], kind: str, architecture: str | None, silent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the text model alone."""
    tied = {name: hf[name] for name in ("tie_word_embeddings",) if name in hf}
    return {"architectures": [architecture], "model_type": kind, **silent, **hf["text_config"], **ids(hf), **tied}


def respell(name: str) -> str:
    """Return a name without language_model: old files put the text model under it, new ones its inner part."""
    return re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", name).removeprefix("language_model.")


def alone(hf: Mapping[str, Any], theta: float, eps: float) -> dict[str, Any]:
    """Return the text model's fields as those of a model without eyes, of files whose rope has three axes (M-RoPE, arXiv 2409.12191).

    In text alone the three positions of a token are the same, so how they share out the angles means nothing: rope is plain. Older files
    have these fields among those of the whole.  theta, eps: of files that leave them out.
    """
    inner = hf.get("text_config")
    values = {"rope_theta": theta, "rms_norm_eps": eps, **(hf if inner is None else inner)}
    for field in ("rope_scaling", "rope_parameters"):
        turn = values.get(field)
        if isinstance(turn, dict) and set(turn) <= AXES and {turn.get("type", "mrope"), turn.get("rope_type", "mrope")} <= PLAIN:
            values["rope_theta"] = turn.get("rope_theta", values["rope_theta"])
            del values[field]
    tied = any(isinstance(part, dict) and part.get("tie_word_embeddings") is True for part in (hf, inner))
    return {n: v for n, v in values.items() if n not in VISION_FIELDS} | {"tie_word_embeddings": tied}


def read_alone(hf: Fields, config: Callable[[Fields], Config], theta: float, eps: float) -> Config:
    """Return the Config of the text model as `config` reads it from `alone`."""
    inner, values = hf.part("text_config"), alone(hf.values, theta, eps)
    if inner is None:
        hf.values = values
        return config(hf)
    inner.fixed("model_type", f"{hf.values['model_type']}_text")
    inner.values, hf.values = values, ids(values) | dict(hf.values)
    hf.read |= VISION_FIELDS | {"tie_word_embeddings"}
    return config(inner)


def saved_alone(hf: Mapping[str, Any], kind: str, architecture: str | None, theta: float, eps: float) -> dict[str, Any]:
    """Return the config.json of the text model alone, of the model_type `kind`."""
    return alone(hf, theta, eps) | ids(hf) | {"architectures": [architecture], "model_type": kind}
