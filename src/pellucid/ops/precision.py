"""The one rule of precision: sums, exponentials and angles are taken in float32 at least, and in float64 where all is float64."""

import math

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for the half precisions, otherwise the dtype itself."""
    return torch.promote_types(dtype, torch.float32)


def rounded(x: float, dtype: torch.dtype) -> float:
    """Round x to the nearest number of a dtype: 59.87 becomes 59.75 in bfloat16."""
    mantissa, power = math.frexp(x)
    bits = 1 - int(math.log2(torch.finfo(dtype).eps))
    return math.ldexp(round(math.ldexp(mantissa, bits)), power - bits)
