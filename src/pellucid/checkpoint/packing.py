"""Weights in blocks (ops/blocks.py) on their way into a model: quantised one by one as they are read, or read as blocks.

    X_codes   int8 or bytes of two int4, in the shape of X but for its last axis where two share a byte
    X_scales  float16, one for each 32 along that axis

On disk X is fused and transposed as its family has it, and so are both of its parts: what a table of names does to axes before the last
one, or to complete matrices, it does to codes and to scales alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from pellucid.checkpoint.safetensors_file import Entry, read_tensor
from pellucid.errors import CheckpointError, UseError
from pellucid.families.names import TensorGroup
from pellucid.families.quantisation import in_blocks
from pellucid.ops import blocks
from pellucid.ops.blocks import Blocks

CODES, SCALES = "_codes", "_scales"
Shape = tuple[int, ...]


class StoredPart(Protocol):
    """The codes or the scales of a tensor on disk."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def read(self, into: Tensor | None = None) -> Tensor: ...


class InParts(Protocol):
    """A tensor on disk that is read as codes and scales."""

    @property
    def name(self) -> str: ...

    @property
    def codes(self) -> StoredPart: ...

    @property
    def scales(self) -> StoredPart: ...

    @property
    def file(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in blocks on disk, under its plain name."""

    name: str
    codes: Entry
    scales: Entry

    @property
    def shape(self) -> Shape:
        """The codes' shape."""
        return self.codes.shape

    @property
    def dtype(self) -> torch.dtype:
        """The codes' dtype. It is no dtype of weights, so that a reader that does not know blocks refuses it."""
        return self.codes.dtype

    @property
    def file(self) -> Path:
        return self.codes.file

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self.codes.bytes + self.scales.bytes

    def read(self, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return its raw bytes, enough to compare two tensors; dequantising needs the model's shapes."""
        return torch.cat([read_tensor(e).flatten().view(torch.uint8) for e in (self.codes, self.scales)])


def stored(entries: Mapping[str, Entry]) -> dict[str, Entry | Stored]:
    """Return a folder's tensors, those in blocks under their plain names."""
    named = {n.removesuffix(CODES) for n in entries if n.endswith(CODES)} | {n.removesuffix(SCALES) for n in entries if n.endswith(SCALES)}
    packed: dict[str, Entry | Stored] = {}
    for name in sorted(named):
        for here, there in ((CODES, SCALES), (SCALES, CODES)):
            if name + there not in entries:
                raise CheckpointError("quantised.alone", file=entries[name + here].file, name=name + here, other=name + there)
        if name in entries:
            raise CheckpointError("index.twice", name=name, left=entries[name].file, right=name + CODES, folder=entries[name].file.parent)
        packed[name] = Stored(name, entries[name + CODES], entries[name + SCALES])
    return {n: e for n, e in entries.items() if n.removesuffix(CODES).removesuffix(SCALES) not in packed} | packed


@dataclass(frozen=True)
class Packing:
    """How a model's matrices are stored in memory. form: int8 or int4.  dtype: what they compute in.  on_disk: those already in blocks.
    only: our names of the parameters that are in blocks, None for all that can be.

    scratch: where plain matrices lie until they are quantised, one group after the other. Memory of their own would leave holes that
    nothing fits into: 124 MB of int4 took 582.
    """

    form: str
    dtype: torch.dtype
    on_disk: Mapping[str, InParts] = field(default_factory=dict)
    scratch: list[Tensor] = field(default_factory=list)
    only: frozenset[str] | None = None

    def parts(self, disk: Sequence[str]) -> list[InParts]:
        """Return the tensors of these names that are in blocks on disk."""
        return [self.on_disk[n] for n in disk if n in self.on_disk]

    def holds(self, g: TensorGroup, ours: Mapping[str, Tensor]) -> bool:
        """True if a group is quantised as it is read. Plain matrices of a folder in blocks stay plain."""
        return not self.on_disk and all(in_blocks(n, tuple(ours[n].shape)) for n in g.ours)

    def judge(self, disk: Sequence[str], g: TensorGroup, ours: Mapping[str, Tensor], file: str) -> None:
        """Raise a CheckpointError unless the codes and scales of these names on disk fit ours."""
        packed = self.parts(disk)
        if len(packed) < len(disk) or not all(in_blocks(n, tuple(ours[n].shape)) for n in g.ours):
            raise CheckpointError("blocks.spared", file=file, name=packed[0].name)
        pairs = [blocks.allocate(ours[n].shape, self.form, "meta") for n in g.ours]
        for entries, places in both(packed, pairs):
            for entry, place in zip(entries, g.layout.write(places), strict=True):
                if entry.dtype != place.dtype:
                    raise CheckpointError("weights.dtype", file=file, name=entry.name, found=entry.dtype, allowed=place.dtype)
                if entry.shape != tuple(place.shape):
                    raise CheckpointError("weights.shape", file=file, name=entry.name, found=entry.shape, needed=tuple(place.shape))

    def read(self, model: nn.Module, disk: Sequence[str], g: TensorGroup, ours: Mapping[str, Tensor]) -> None:
        """Read a group's codes and scales from disk into the model."""
        packed, pairs = self.parts(disk), [blocks.allocate(ours[n].shape, self.form) for n in g.ours]
        for entries, places in both(packed, pairs):
            if g.layout.views:
                for entry, place in zip(entries, g.layout.write(places), strict=True):
                    entry.read(place)
            else:
                values = g.layout.read([e.read() for e in entries], [tuple(t.shape) for t in places])
                for place, value in zip(places, values, strict=True):
                    place.copy_(value)
        for name, (codes, scales) in zip(g.ours, pairs, strict=True):
            if not scales.isfinite().all():
                raise CheckpointError("quantised.scale", file=packed[0].file, name=packed[0].scales.name)
            put(model, name, Blocks(codes, scales, ours[name].shape[-1], self.dtype))

    def places(self, shapes: Sequence[torch.Size], dtype: torch.dtype) -> list[Tensor]:
        """Return uninitialised tensors in `scratch`, valid until the next call."""
        sizes = [s.numel() for s in shapes]
        if not self.scratch or self.scratch[0].nbytes < sum(sizes) * dtype.itemsize:
            self.scratch[:] = [torch.empty(sum(sizes) * dtype.itemsize, dtype=torch.uint8)]
        flat = self.scratch[0][: sum(sizes) * dtype.itemsize].view(dtype).split(sizes)
        return [t.view(s) for t, s in zip(flat, shapes, strict=True)]

    def pack(self, model: nn.Module, names: Sequence[str], file: str, values: Sequence[Tensor] | None = None) -> None:
        """Quantise parameters one by one, from the model or from `values`."""
        for name, weight in zip(names, values or map(model.get_parameter, names), strict=True):
            if not self.applies(name, tuple(weight.shape)):
                continue
            made = blocks.quantised(weight, self.form, self.dtype)
            if made.device.type != "meta" and not made.scales.isfinite().all():
                raise CheckpointError("blocks.finite", file=file, name=name, form=self.form)
            put(model, name, made)

    def applies(self, name: str, shape: Shape) -> bool:
        """True if a parameter of ours is in blocks in memory."""
        return in_blocks(name, shape) and (self.only is None or name in self.only)

    def bytes(self, model: nn.Module) -> int:
        """Return the bytes that a model's parameters will take."""
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        plain = sum(torch.Size(s).numel() * self.dtype.itemsize for n, s in shapes.items() if not self.applies(n, s))
        return plain + sum(blocks.size(s, self.form) for n, s in shapes.items() if self.applies(n, s))


def both(packed: Sequence[InParts], pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[StoredPart], list[Tensor]]]:
    """Yield the codes on disk with their places, then the scales with theirs."""
    yield [s.codes for s in packed], [codes for codes, _ in pairs]
    yield [s.scales for s in packed], [scales for _, scales in pairs]


def put(model: nn.Module, name: str, weight: Blocks) -> None:
    """Set a parameter by its path."""
    owner, _, leaf = name.rpartition(".")
    model.get_submodule(owner)._parameters[leaf] = nn.Parameter(weight, requires_grad=False)


def unpacked(g: TensorGroup, ours: Sequence[Blocks]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors on disk of a group in blocks."""
    for end, parts in ((CODES, [t.codes for t in ours]), (SCALES, [t.scales for t in ours])):
        yield from zip((n + end for n in g.disk), (t.contiguous() for t in g.layout.write(parts)), strict=True)


def check_quant(form: str | None) -> None:
    """Raise a UseError if `form` is no format of blocks."""
    if form not in (None, *blocks.BITS):
        raise UseError("model.quant", found=form, allowed=", ".join(blocks.BITS))
