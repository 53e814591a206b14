"""FP8 and MXFP4: floating-point values of 8 or 4 bits, and a scale for each block.

    FP8     X.weight  float8 [out in]          X.weight_scale_inv  [out/128 in/128], rounded up     a scale for each block, ragged ones too
    MXFP4   X_blocks  bytes [E out in/32 16]   X_scales            bytes [E out in/32]              X is [E in out]

A byte of MXFP4 holds two values, the low half first; a scale s is 2^(s - 127). Products are in float32 at least and rounded once.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pellucid.checkpoint.quantised_tensor import Quantised, both, finite, judge
from pellucid.checkpoint.safetensors_file import Entry, read_tensor
from pellucid.ops.precision import wide

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # by the four bits, the sign first
E8M0 = (*(2.0 ** (s - 127) for s in range(255)), float("nan"))  # by the byte
STRIP = 64  # rows
SCALE_DTYPES = (torch.float32, torch.bfloat16)


def fp8(entries: Mapping[str, Entry], block: tuple[int, int]) -> list[Quantised]:
    """Return every float8 weight with its scales; a stack of experts [E out in] has a grid for each."""
    named = {n.removesuffix("_scale_inv") for n in entries if n.endswith("_scale_inv")}
    named |= {n for n, e in entries.items() if e.dtype == torch.float8_e4m3fn}
    tensors = []
    for name in sorted(named):
        values, scales = both(entries, name, f"{name}_scale_inv")
        judge(values, (torch.float8_e4m3fn,), len(values.shape) >= 2, "[..., out, in]")
        grid = (*values.shape[:-2], *(-(-n // b) for n, b in zip(values.shape[-2:], block, strict=True)))
        judge(scales, SCALE_DTYPES, scales.shape == grid, grid)
        tensors.append(Quantised(name, values.shape, (values, scales), partial(times_grid, block)))
    return tensors


def mxfp4(entries: Mapping[str, Entry]) -> list[Quantised]:
    """Return every stack of experts in blocks of 32 values with their scales, but those that also have a plain tensor of their name."""
    named = {n.removesuffix(end) for end in ("_blocks", "_scales") for n in entries if n.endswith(end)}
    tensors = []
    for name in sorted(named - entries.keys()):
        values, scales = both(entries, f"{name}_blocks", f"{name}_scales")
        judge(values, (torch.uint8,), len(values.shape) == 4 and values.shape[3] == 16, "[experts, out, in / 32, 16]")
        judge(scales, (torch.uint8,), scales.shape == values.shape[:3], values.shape[:3])
        experts, out, groups, _ = values.shape
        tensors.append(Quantised(name, (experts, groups * 32, out), (values, scales), times_powers, transposed=True))
    return tensors


def times_grid(block: tuple[int, int], parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise FP8 into `into`, a row of blocks at a time; scales are repeated along columns and cut off at a ragged last block."""
    (values, scales), kind = parts, wide(into.dtype)
    small, grid = read_tensor(values), finite(read_tensor(scales), scales).to(kind)
    for i in range(grid.shape[-2]):
        rows = slice(i * block[0], (i + 1) * block[0])
        along = grid[..., i : i + 1, :].repeat_interleave(block[1], -1)[..., : into.shape[-1]]
        into[..., rows, :] = small[..., rows, :].to(kind) * along


def times_powers(parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise MXFP4 into `into`, a strip of rows at a time to stay in the cache; a byte's two values are one complex table entry."""
    (values, scales), kind, rows = parts, wide(into.dtype), into.mT
    pairs = torch.view_as_complex(torch.tensor([(E2M1[byte & 15], E2M1[byte >> 4]) for byte in range(256)], dtype=kind))
    powers = finite(torch.tensor(E8M0, dtype=kind)[read_tensor(scales).int()], scales)
    for e in range(len(rows)):
        packed = read_tensor(values, rows=(e, e + 1))[0]
        for part, power, place in zip(packed.split(STRIP), powers[e].split(STRIP), rows[e].split(STRIP), strict=True):
            both = torch.view_as_real(pairs.index_select(0, part.flatten().int())).view(*power.shape, 32)
            place.copy_((both * power[..., None]).flatten(-2))
