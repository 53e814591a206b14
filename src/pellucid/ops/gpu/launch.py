"""How a kernel is launched: the tensors that fit, the number of parts, the settings that Triton compiles for."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pellucid.ops.precision import wide

FLOATS = torch.bfloat16, torch.float16, wide(torch.bfloat16)


@cache
def available() -> bool:
    """True if Triton is installed and there is a GPU that it compiles for."""
    return torch.cuda.is_available() and find_spec("triton") is not None


def fits(*tensors: Tensor | None) -> bool:
    """True if the kernels take these tensors: on a GPU, contiguous, of one dtype of 32 bits or fewer, without a gradient to record."""
    first = tensors[0]
    if first is None or not first.is_cuda or first.dtype not in FLOATS or not first.numel() or not available():
        return False
    if torch.compiler.is_compiling():
        return False
    grad = torch.is_grad_enabled()
    for t in tensors:
        if t is not None and (
            type(t) not in (Tensor, torch.nn.Parameter)
            or t.device != first.device
            or t.dtype is not first.dtype
            or not t.is_contiguous()
            or (grad and t.requires_grad)
        ):
            return False
    return True


@cache
def processors(device: torch.device) -> int:
    """Return the number of a GPU's multiprocessors; 1 for a device that only stands in for one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def overlaps(device: torch.device) -> bool:
    """True if a kernel may be launched while the one before still runs: from Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def how(x: Tensor, warps: int = 4) -> dict[str, Any]:
    """Return the settings of a launch on the device of x."""
    after = overlaps(x.device)
    return {"PDL": after, "num_warps": warps, **({"launch_pdl": True} if after else {})}


def power(n: int) -> int:
    """Return the least power of two that is at least n, whose sizes Triton's blocks have."""
    return 1 << max(0, n - 1).bit_length()
