"""LLaVA 1.5 and Pixtral (arXiv 2310.03744, 2410.07073), which see: their text model, a Llama, a Mistral or a Qwen2."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama, mistral, multimodal, qwen2
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TEXT_MODELS = {"llama": llama.FAMILY, "mistral": mistral.FAMILY, "qwen2": qwen2.FAMILY}
# the classes' defaults, of files that leave them out
BLOCKS = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32_000}
SILENT: dict[str, dict[str, int]] = {
    "llama": BLOCKS | {"intermediate_size": 11_008, "max_position_embeddings": 2048},
    "mistral": BLOCKS | {"intermediate_size": 14_336, "max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": BLOCKS | {"intermediate_size": 22_016, "max_position_embeddings": 32_768, "num_key_value_heads": 32, "vocab_size": 151_936},
}
VISION = {
    *("ignore_index", "image_seq_length", "projector_hidden_act", "vision_feature_layer"),
    *("vision_feature_select_strategy", "multimodal_projector_bias"),
}


def config(hf: Fields) -> c.Config:
    """Return the text model's Config; its head is tied if the whole file or its own fields say so."""
    hf.get("text_config")
    inner = hf.part("text_config")
    assert inner is not None
    kind = inner.choice("model_type", {name: name for name in TEXT_MODELS}, "llama")
    text = multimodal.text(hf, kind, {"model_type": kind} | SILENT[kind])
    hf.read |= VISION
    text.read |= {"is_composition"}  # Pixtral's, of the file's own form
    cfg = TEXT_MODELS[kind].config(text)
    hf.fixed("vocab_size", cfg.vocab)
    return replace(cfg, tied=hf.flag("tie_word_embeddings", False) or cfg.tied)


def inner_type(cfg: c.Config) -> str:
    """Return the text model's type: Qwen2 has biases but of the output, Mistral a window; one without it is a Llama."""
    attn = cfg.layers[0].attn
    if getattr(attn, "bias", False) and not getattr(attn, "out_bias", False):
        return "qwen2"
    return "llama" if getattr(attn, "window", None) is None else "mistral"


def saved_config(hf: Mapping[str, Any]) -> dict[str, Any]:
    kind = hf["text_config"].get("model_type", "llama")
    return multimodal.file(hf, kind, TEXT_MODELS[kind].architecture, SILENT[kind])


FAMILY = Family(
    config=config,
    rules=llama.RULES,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    saved_config=saved_config,
    text_model=inner_type,
)
