"""The small kernels of many rows, cut into pieces of several: each number has its bits among any others, in each instruction set."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from test_native_sets import each_set, forced

ROWS, WIDTH, HEADS = 150, 1100, 10  # more than 64 pieces of 1,024 numbers, and not a multiple of any
Kernel = Callable[..., Tensor]


def kernels(dtype: torch.dtype) -> dict[str, Kernel]:
    """Kernels of rows x [1 T D], y like it and positions [1 T]."""
    table, weight = torch.randn(ROWS, WIDTH).to(dtype), torch.randn(WIDTH).to(dtype)
    cos, sin = torch.rand(ROWS, WIDTH // HEADS // 2).to(dtype), torch.rand(ROWS, WIDTH // HEADS // 2).to(dtype)

    def rotate(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        return native.rotate(x.view(1, -1, HEADS, WIDTH // HEADS), cos[at], sin[at], False).flatten(2)

    return {
        "add": lambda x, y, at: native.add(x, y),
        **{act: lambda x, y, at, act=act: native.gate(x, y, act) for act in ("silu", "gelu", "gelu_tanh", "clamped", "relu2")},
        "norm": lambda x, y, at: native.norm(x, weight, None, 1e-5, False),
        "rotate": rotate,
        "embedding": lambda x, y, at: native.embedding(at, table),
    }


def check(kernel: Kernel, dtype: torch.dtype) -> None:
    """Assert that all rows together have the bits of sixteen at a time."""
    x, y, at = torch.randn(1, ROWS, WIDTH).to(dtype), torch.randn(1, ROWS, WIDTH).to(dtype), torch.arange(ROWS)[None]
    with torch.no_grad(), native.any_rows():
        few = [kernel(*(t.contiguous() for t in some)) for some in zip(*(t.split(16, 1) for t in (x, y, at)), strict=True)]
        assert torch.equal(kernel(x, y, at), torch.cat(few, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_set
def test_a_number_has_its_bits_among_any_others(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with forced(name):
        for kernel in kernels(dtype).values():
            check(kernel, dtype)


@each_set
def test_a_piece_that_no_thread_takes_is_seen(name: str) -> None:
    def wrong(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        z: Any = native.add(x, y)
        z.view(-1)[64 * 1024 :] = 0
        return z

    torch.manual_seed(0)
    with forced(name), pytest.raises(AssertionError):
        check(wrong, torch.float32)
