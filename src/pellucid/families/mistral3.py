"""Mistral Small 3.1 and 3.2, Ministral 3 (2025) and Mistral Small 4 (2026), which see: their text model, of a type of its own."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama, ministral3, mistral, mistral4, multimodal
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

TEXT_MODELS = {"mistral": mistral.FAMILY, "ministral3": ministral3.FAMILY, "mistral4": mistral4.FAMILY}
VISION = {"multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "vision_feature_layer"}


def config(hf: Fields) -> c.Config:
    hf.get("text_config")
    inner = hf.part("text_config")
    assert inner is not None
    kind = inner.choice("model_type", {name: name for name in TEXT_MODELS}, "mistral")
    text = multimodal.text(hf, kind, {})
    hf.read |= VISION
    return replace(TEXT_MODELS[kind].config(text), tied=hf.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False)))


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return mistral4.RULES if cfg.layers[0].attn.kind == "MLA" else llama.RULES


def inner_type(cfg: c.Config) -> str:
    """Return the text model's type: Mistral 4 has latents, and Ministral 3 a temperature."""
    attn = cfg.layers[0].attn
    return "mistral4" if attn.kind == "MLA" else "ministral3" if getattr(attn, "temper", None) else "mistral"


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with an untied head if one is stored: published files do not say."""
    return replace(cfg, tied="lm_head.weight" not in names)


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    kind = hf["text_config"].get("model_type", "mistral")
    return multimodal.file(hf, kind, TEXT_MODELS[kind].architecture, {})


FAMILY = Family(
    config=config,
    rules=rules,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    resolve=resolve,
    saved_config=saved_config,
    text_model=inner_type,
)
