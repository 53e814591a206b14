"""Qwen2.5-VL (arXiv 2502.13923), which sees: its text model, a Qwen2, read as Qwen2-VL's."""

from pellucid.families import llama, multimodal, qwen2_vl
from pellucid.families.family import Family

FAMILY = Family(
    config=qwen2_vl.config,
    rules=llama.RULES,
    ignored=(*llama.IGNORED, multimodal.VISION_TENSORS),
    respell=multimodal.respell,
    saved_config=qwen2_vl.saved_config,
    text_model=qwen2_vl.TEXT_MODEL,
)
