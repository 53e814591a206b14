"""Attention on meta that keeps for the backward pass what it keeps on a device."""

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Flash(TorchFunctionMode):
    """Attention on meta as a device runs it. There torch takes SDPA apart and keeps the pattern, B·H·T·S numbers of it; the kernels of
    real devices keep one number a row, B·H·T, and make the pattern again. Where no kernel fits a CPU either, both keep the pattern.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            (q, k, v), mask = args, kwargs["attn_mask"]
            if q.is_meta and q.shape[-1] == k.shape[-1] == v.shape[-1] and not (mask is not None and mask.requires_grad):
                if mask is not None and mask.dtype == torch.bool:
                    mask = torch.empty_like(mask, dtype=q.dtype)
                flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
                return flash(q, k, v, 0.0, kwargs["is_causal"], attn_mask=mask, scale=kwargs["scale"])[0]
        return func(*args, **kwargs)
