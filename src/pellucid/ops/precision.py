"""The one rule of precision: sums, exponentials and angles are taken in float32 at least, and in float64 where all is float64."""

import math

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half precisions, otherwise the dtype itself."""
    return torch.promote_types(dtype, torch.float32)


def rounded(x: float, dtype: torch.dtype) -> float:
    """x as dtype would hold it: 59.87 of bfloat16 is 59.75."""
    mantissa, power = math.frexp(x)
    bits = 1 - int(math.log2(torch.finfo(dtype).eps))
    return math.ldexp(round(math.ldexp(mantissa, bits)), power - bits)
