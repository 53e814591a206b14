"""Quantised tensors as the plain ones they stand for: values times scales, under the plain tensor's name and in its shape.

    FP8     X.weight  float8 [out in]          X.weight_scale_inv  [out/128 in/128], rounded up     a scale for each block, ragged ones too
    MXFP4   X_blocks  bytes [E out in/32 16]   X_scales            bytes [E out in/32]              X is [E in out]

A byte of MXFP4 holds two values, the low half first; a scale s is 2^(s - 127). Products are in float32 at least and rounded once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pellucid.checkpoint.packing import Stored, stored
from pellucid.checkpoint.safetensors_file import Entry, read_tensor
from pellucid.errors import CheckpointError
from pellucid.families.quantisation import Fp8, InBlocks, Method
from pellucid.ops.precision import wide

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # by the four bits, the sign first
E8M0 = (*(2.0 ** (s - 127) for s in range(255)), float("nan"))  # by the byte
STRIP = 64  # rows
SCALE_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A tensor stored as small values and their scales.

    multiply(values, scales, place): fills `place`.  transposed: the last two axes are swapped on disk.  dtype: the dtype it stands for.
    """

    name: str
    shape: tuple[int, ...]
    values: Entry
    scales: Entry
    multiply: Callable[[Entry, Entry, Tensor], None]
    transposed: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def file(self) -> Path:
        """The file of the values."""
        return self.values.file

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self.values.bytes + self.scales.bytes

    def read(self, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the plain tensor, in `into` (any floating-point dtype and layout) or a new one of `dtype`, laid out as on disk."""
        place = self.empty(dtype or self.dtype) if into is None else into
        if tuple(place.shape) != self.shape:
            raise CheckpointError("safetensors.into", file=self.file, name=self.name, found=self.shape, expected=tuple(place.shape))
        with torch.no_grad():
            self.multiply(self.values, self.scales, place.detach())
        return place

    def empty(self, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor that is filled without a transpose."""
        *first, rows, columns = self.shape
        return torch.empty(*first, columns, rows, dtype=dtype).mT if self.transposed else torch.empty(self.shape, dtype=dtype)


def dequantised(entries: Mapping[str, Entry], method: Method | None) -> Mapping[str, Entry | Quantised | Stored]:
    """Return a folder's tensors, quantised ones under their plain names. Checks shapes and dtypes; reads no tensor."""
    if method is None:
        return {**entries}
    if isinstance(method, InBlocks):
        return stored(entries)
    tensors = fp8(entries, method.block) if isinstance(method, Fp8) else mxfp4(entries)
    used = {part.name for q in tensors for part in (q.values, q.scales)}
    return {**{n: e for n, e in entries.items() if n not in used}, **{q.name: q for q in tensors}}


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
        tensors.append(Quantised(name, values.shape, values, scales, partial(times_grid, block)))
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
        tensors.append(Quantised(name, (experts, groups * 32, out), values, scales, times_powers, transposed=True))
    return tensors


def both(entries: Mapping[str, Entry], values: str, scales: str) -> tuple[Entry, Entry]:
    """Return the entries of these two names. A CheckpointError if one is missing."""
    for here, there in ((values, scales), (scales, values)):
        if there not in entries:
            raise CheckpointError("quantised.alone", file=entries[here].file, name=here, other=there)
    return entries[values], entries[scales]


def judge(entry: Entry, dtypes: tuple[torch.dtype, ...], fits: bool, needed: object) -> None:
    """Raise a CheckpointError unless the dtype is among `dtypes` and the shape `fits`; `needed` is the shape for the error."""
    if entry.dtype not in dtypes:
        raise CheckpointError("weights.dtype", file=entry.file, name=entry.name, found=entry.dtype, allowed=", ".join(map(str, dtypes)))
    if not fits:
        raise CheckpointError("weights.shape", file=entry.file, name=entry.name, found=entry.shape, needed=needed)


def finite(scales: Tensor, entry: Entry) -> Tensor:
    """Return `scales`. A CheckpointError if one is infinite or NaN."""
    if not scales.isfinite().all():
        raise CheckpointError("quantised.scale", file=entry.file, name=entry.name)
    return scales


def times_grid(block: tuple[int, int], values: Entry, scales: Entry, into: Tensor) -> None:
    """Dequantise FP8 into `into`, a row of blocks at a time; scales are repeated along columns and cut off at a ragged last block."""
    kind = wide(into.dtype)
    small, grid = read_tensor(values), finite(read_tensor(scales), scales).to(kind)
    for i in range(grid.shape[-2]):
        rows = slice(i * block[0], (i + 1) * block[0])
        along = grid[..., i : i + 1, :].repeat_interleave(block[1], -1)[..., : into.shape[-1]]
        into[..., rows, :] = small[..., rows, :].to(kind) * along


def times_powers(values: Entry, scales: Entry, into: Tensor) -> None:
    """Dequantise MXFP4 into `into`, a strip of rows at a time to stay in the cache; a byte's two values are one complex table entry."""
    kind, rows = wide(into.dtype), into.mT
    pairs = torch.view_as_complex(torch.tensor([(E2M1[byte & 15], E2M1[byte >> 4]) for byte in range(256)], dtype=kind))
    powers = finite(torch.tensor(E8M0, dtype=kind)[read_tensor(scales).int()], scales)
    for e in range(len(rows)):
        packed = read_tensor(values, rows=(e, e + 1))[0]
        for part, power, place in zip(packed.split(STRIP), powers[e].split(STRIP), rows[e].split(STRIP), strict=True):
            both = torch.view_as_real(pairs.index_select(0, part.flatten().int())).view(*power.shape, 32)
            place.copy_((both * power[..., None]).flatten(-2))
