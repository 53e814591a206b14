"""A tensor that is stored as small values with scales, and the checks of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pellucid.checkpoint.safetensors_file import Entry
from pellucid.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Quantised:
    """A tensor stored as small values and their scales, and with some methods zero points and more.

    multiply(parts, place): fills `place`.  transposed: the last two axes are swapped on disk.  dtype: the dtype it stands for.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Entry, ...]
    multiply: Callable[[Sequence[Entry], Tensor], None]
    transposed: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def file(self) -> Path:
        """The file of the values."""
        return self.parts[0].file

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(part.bytes for part in self.parts)

    def read(self, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the plain tensor, in `into` (any floating-point dtype and layout) or a new one of `dtype`, laid out as on disk."""
        place = self.empty(dtype or self.dtype) if into is None else into
        if tuple(place.shape) != self.shape:
            raise CheckpointError("safetensors.into", file=self.file, name=self.name, found=self.shape, expected=tuple(place.shape))
        with torch.no_grad():
            self.multiply(self.parts, place.detach())
        return place

    def empty(self, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor that is filled without a transpose."""
        *first, rows, columns = self.shape
        return torch.empty(*first, columns, rows, dtype=dtype).mT if self.transposed else torch.empty(self.shape, dtype=dtype)


def both(entries: Mapping[str, Entry], values: str, scales: str) -> tuple[Entry, Entry]:
    """Return the entries of these two names. A CheckpointError if one is missing."""
    for here, there in ((values, scales), (scales, values)):
        if there not in entries:
            raise CheckpointError("quantised.alone", file=entries[here].file, name=here, other=there)
    return entries[values], entries[scales]


def parts_of(entries: Mapping[str, Entry], name: str, *others: str) -> list[Entry]:
    """Return the entries of `others`. A CheckpointError if one is missing beside `name`, which is there."""
    for other in others:
        if other not in entries:
            raise CheckpointError("quantised.alone", file=entries[name].file, name=name, other=other)
    return [entries[other] for other in others]


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
