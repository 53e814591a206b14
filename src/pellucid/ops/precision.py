"""The one rule of precision: sums, exponentials and angles are taken in float32 at least, and in float64 where all is float64."""

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half precisions, otherwise the dtype itself."""
    return torch.promote_types(dtype, torch.float32)
