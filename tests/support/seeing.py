"""Tiny models of transformers that see, whose text models are read."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from judge import KINDS, promoted, prompts


def seeing(kind: str, text: str, eyes: dict[str, Any], inner: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return a random model of `kind` in float64, around the tiny text model of a family. inner: fields of that which differ."""
    tiny = KINDS[text].tiny | {"model_type": text} | (inner or {})
    cfg = AutoConfig.for_model(kind, text_config=tiny, vision_config=eyes, **more)
    cfg._attn_implementation = cfg._experts_implementation = cfg.text_config._experts_implementation = "eager"
    torch.manual_seed(0)
    with promoted(), torch.no_grad():
        hf = AutoModelForImageTextToText.from_config(cfg).double().eval()
        for p in hf.parameters():
            p += 0.15 * torch.randn_like(p)
    return hf


def logits_of_text(hf: Any, text: str) -> Tensor:
    """Return the logits that its text model gives the family's prompts."""
    with promoted(), torch.no_grad():
        rows = hf.model.language_model(input_ids=prompts(text)[0], use_cache=False).last_hidden_state
        return hf.lm_head(rows)  # type: ignore[no-any-return]
