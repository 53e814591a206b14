"""A tensor of a GGUF file in one of its types with blocks: as plain numbers, or its codes and scales where ours are the same.

Q8_0    d, 32 codes of a byte            int8: the same codes, the same scales
Q4_0    d, 16 bytes: byte j has codes    int4: the same codes and scales; our byte j has codes 2j and 2j + 1
        j and j + 16
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from pellucid.checkpoint.gguf.block_types import BlockType, nibbles
from pellucid.checkpoint.safetensors_file import Entry, read_tensor
from pellucid.errors import CheckpointError
from pellucid.ops.blocks import BLOCK, SCALE

FORMS = {"Q8_0": "int8", "Q4_0": "int4"}
STRIP = 1 << 20  # numbers that are dequantised at a time
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor in blocks along its last axis. raw: its bytes as a tensor [rows, bytes of a row]."""

    name: str
    kind: BlockType
    shape: Shape
    raw: Entry
    dtype: torch.dtype = torch.float32  # of the numbers that it stands for

    @property
    def file(self) -> Path:
        return self.raw.file

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self.raw.bytes

    def read(self, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the plain numbers, in `into` (any floating-point dtype and layout) or in a new tensor of `dtype`."""
        place = torch.empty(self.shape, dtype=dtype or self.dtype) if into is None else into
        assert self.kind.dequantise is not None
        return self.fill(place, self.kind.dequantise)

    def fill(self, place: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
        """Fill `place` with what `convert` makes of blocks [N bytes], a strip of rows at a time; each gives the same number of cells."""
        if tuple(place.shape[:-1]) != self.shape[:-1]:
            raise CheckpointError("safetensors.into", file=self.file, name=self.name, found=self.shape, expected=tuple(place.shape))
        rows, flat = self.raw.shape[0], place.detach()
        contiguous = flat.is_contiguous()
        target = (flat if contiguous else torch.empty(flat.shape, dtype=flat.dtype)).view(rows, -1)
        step = max(1, STRIP // max(1, self.shape[-1]))
        for first in range(0, rows, step):
            strip = read_tensor(self.raw, rows=(first, min(first + step, rows)))
            target[first : first + step].copy_(convert(strip.view(-1, self.kind.bytes)).view(len(strip), -1))
        if not contiguous:
            flat.copy_(target.view(flat.shape))
        return place

    @property
    def form(self) -> str | None:
        """The format of ours that holds the same codes and scales; None if none does."""
        return FORMS.get(self.kind.name)

    @property
    def codes(self) -> "PackedPart":
        """The codes, as our blocks have them."""
        if self.form == "int8":
            return PackedPart(self, self.shape, torch.int8, lambda raw: raw[:, 2:].contiguous().view(torch.int8))
        return PackedPart(self, (*self.shape[:-1], self.shape[-1] // 2), torch.uint8, neighbours)

    @property
    def scales(self) -> "PackedPart":
        """The scales, as our blocks have them."""
        shape = (*self.shape[:-1], self.shape[-1] // BLOCK)
        return PackedPart(self, shape, SCALE, lambda raw: raw[:, :2].contiguous().view(SCALE))


@dataclass(frozen=True, slots=True)
class PackedPart:
    """The codes or the scales of a tensor in blocks; convert(blocks [N bytes]) gives theirs."""

    tensor: PackedTensor
    shape: Shape
    dtype: torch.dtype
    convert: Callable[[Tensor], Tensor]

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def file(self) -> Path:
        return self.tensor.file

    def read(self, into: Tensor | None = None) -> Tensor:
        """Return the codes or scales, in `into` or a new tensor."""
        return self.tensor.fill(torch.empty(self.shape, dtype=self.dtype) if into is None else into, self.convert)


def neighbours(raw: Tensor) -> Tensor:
    """Return the codes of Q4_0 blocks [N 18] as our bytes [N 16], two neighbours in each."""
    low, high = nibbles(raw[:, 2:], 16).unflatten(-1, (-1, 2)).unbind(-1)
    return low | high << 4  # type: ignore[no-any-return]


def packed(codes: Tensor, scales: Tensor, name: str) -> Tensor:
    """Return our codes [... n] and scales [... n/32] as the bytes [... row] of Q8_0 or Q4_0."""
    blocks = scales.contiguous().view(torch.uint8).unflatten(-1, (-1, 2))
    if name == "Q8_0":
        inner = codes.view(torch.uint8).unflatten(-1, (-1, BLOCK))
    else:
        pairs = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).unflatten(-1, (-1, 2, BLOCK // 2))
        inner = pairs[..., 0, :] | pairs[..., 1, :] << 4
    return torch.cat((blocks, inner), -1).flatten(-2)


def row_entry(name: str, kind: BlockType, shape: Shape, begin: int, like: Entry) -> Entry:
    """Return the entry of a tensor's bytes as [rows, bytes of a row]; `like` has the file and its stamp."""
    row = shape[-1] // kind.block * kind.bytes
    rows = prod(shape[:-1])
    return Entry(name, torch.uint8, (rows, row), begin, begin + rows * row, like.file, like.stamp)
