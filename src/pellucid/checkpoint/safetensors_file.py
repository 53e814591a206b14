"""Safetensors files, read by our own strict parser and written by the library, which also judges the reader in the tests.

    8 bytes     N, the header's length, little-endian
    N bytes     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"format": "pt"}}
    the rest    the tensors' bytes without holes; an offset counts from here

Every number is checked as an exact Python integer before anything is allocated, and bytes go by `pread` straight into final storage.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from pellucid.checkpoint.disk import Stamp, read_at, reason, refuse_stand_in, regular, replacing, stamp
from pellucid.checkpoint.json_file import TABLE_BYTES, name_of, parse_object
from pellucid.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "BOOL": torch.bool,
}
MOST_TENSORS = 1 << 18  # of one file; the largest published checkpoints hold 92,000 over all shards
MOST_AXES = 8
LARGEST_AXIS = 1 << 40
STRIP_BYTES = 1 << 26
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of one tensor: bytes `begin` to `end` of `file`, which must still have the `stamp` of the file whose header was read."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    file: Path
    stamp: Stamp

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.begin

    def read(self, into: Tensor | None = None) -> Tensor:
        """Return the tensor's values, in `into` or a new tensor; see `read_tensor`."""
        return read_tensor(self, into)


def read_header(path: str | Path) -> dict[str, Entry]:
    """Return the tensors of a safetensors file by name, in the order of their bytes; reads the header only."""
    return _header(Path(path))[0]


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return the text under `__metadata__` of a safetensors file."""
    return _header(Path(path))[1]


def read_tensor(entry: Entry, into: Tensor | None = None, rows: tuple[int, int] | None = None) -> Tensor:
    """Return one tensor's values, or rows `rows[0]` to `rows[1]` of its first axis.

    into: a tensor of the same shape to fill, such as a slice of stacked experts; if its dtype and layout allow, bytes are read straight
    into it, else copied and cast, 64 MB at a time. Without it, a new CPU tensor of the file's dtype.
    """
    shape, begin = entry.shape, entry.begin
    if rows is not None:
        first, last = rows
        if not shape or not 0 <= first <= last <= shape[0]:
            raise CheckpointError("safetensors.rows", file=entry.file, name=entry.name, rows=rows, shape=shape)
        row = prod(shape[1:]) * entry.dtype.itemsize
        shape, begin = (last - first, *shape[1:]), begin + first * row
    if into is not None and tuple(into.shape) != shape:
        raise CheckpointError("safetensors.into", file=entry.file, name=entry.name, found=shape, expected=tuple(into.shape))
    place = torch.empty(shape, dtype=entry.dtype) if into is None else into
    direct = place.dtype == entry.dtype and place.device.type == "cpu" and place.is_contiguous()
    with regular(entry.file) as fd:
        if stamp(fd) != entry.stamp:
            raise CheckpointError("safetensors.changed", file=entry.file)
        for part in [place.detach()] if direct or not shape else place.detach().split(_strip(entry, shape)):
            buffer = part if direct else torch.empty(part.shape, dtype=entry.dtype)
            _read_bytes(fd, buffer, begin, entry)
            begin += buffer.nbytes
            if not direct:
                part.copy_(buffer)
    return place


def _strip(entry: Entry, shape: tuple[int, ...]) -> int:
    """Return how many rows of the first axis to read at a time when they must be cast."""
    return max(1, STRIP_BYTES // max(1, prod(shape[1:]) * entry.dtype.itemsize))


def _read_bytes(fd: int, target: Tensor, begin: int, entry: Entry) -> None:
    """Fill a contiguous CPU tensor of the entry's dtype with the file's bytes from `begin` on."""
    if not target.numel():
        return
    raw = target.reshape(-1).view(torch.uint8)
    read_at(fd, raw.numpy().data, begin, entry.file)
    if entry.dtype == torch.bool:
        raw.ne_(0)  # a byte other than 0 and 1 is no boolean that torch computes with


def write(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically: a temporary file, synced, then renamed; a failure changes nothing.

    Tensors that share storage are written separately; metadata None means {"format": "pt"}, which transformers requires.
    """
    path = Path(path)
    ready: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if name == "__metadata__":
            raise CheckpointError("safetensors.reserved", file=path, name=name)
        if tensor.dtype not in DTYPES.values():
            raise CheckpointError("safetensors.dtype", file=path, name=name, dtype=tensor.dtype, allowed=", ".join(DTYPES))
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in storages:
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        ready[name] = plain
    with replacing(path) as part:
        with part.open("wb"):
            mode = part.stat().st_mode  # as the umask has it; the library writes for the owner alone
        try:
            save_file(ready, part, dict(metadata) if metadata is not None else {"format": "pt"})
        except SafetensorError as broken:
            raise CheckpointError("file.write", file=path, reason=reason(broken)) from None
        part.chmod(mode)


def _header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    with regular(path) as fd:
        mark = stamp(fd)
        size = os.fstat(fd).st_size
        head = bytearray(min(size, 512))
        read_at(fd, memoryview(head), 0, path)
        refuse_stand_in(bytes(head), path)
        if size < 8:
            raise CheckpointError("safetensors.length", file=path, size=size)
        length = int.from_bytes(head[:8], "little")
        if length > min(size - 8, TABLE_BYTES):
            raise CheckpointError("safetensors.header", file=path, length=length, size=size, limit=TABLE_BYTES)
        raw = bytearray(length)
        read_at(fd, memoryview(raw), 8, path)
    if not raw.startswith(b"{"):
        raise CheckpointError("safetensors.start", file=path, found=bytes(raw[:8]))
    if raw.count(b"{") > MOST_TENSORS + 2:
        raise CheckpointError("safetensors.many", file=path, limit=MOST_TENSORS)
    table = parse_object(bytes(raw), f"{path} (header)", CheckpointError)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointError("safetensors.metadata", file=path)
    start = 8 + length
    entries = [_entry(name, fields, start, path, mark) for name, fields in table.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _refuse_gaps(entries, start, size, path)
    return {entry.name: entry for entry in entries}, metadata


def _entry(name: str, fields: Any, start: int, path: Path, mark: Stamp) -> Entry:
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        given = ", ".join(fields) if isinstance(fields, dict) else name_of(fields)
        raise CheckpointError("safetensors.fields", file=path, name=name, found=given)
    tag, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    dtype = DTYPES.get(tag) if isinstance(tag, str) else None
    if dtype is None:
        raise CheckpointError("safetensors.dtype", file=path, name=name, dtype=tag, allowed=", ".join(DTYPES))
    # type() and not isinstance: True is an int to Python
    if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(type(n) is int and 0 <= n < LARGEST_AXIS for n in shape):
        raise CheckpointError("safetensors.shape", file=path, name=name, shape=shape, axes=MOST_AXES)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets) or offsets[0] > offsets[1]:
        raise CheckpointError("safetensors.offsets", file=path, name=name, offsets=offsets)
    needed = prod(shape) * dtype.itemsize
    # an empty tensor's strides still multiply its other axes, and torch holds them in 63 bits
    if prod(max(n, 1) for n in shape) >= 1 << 60:
        raise CheckpointError("safetensors.shape", file=path, name=name, shape=shape, axes=MOST_AXES)
    begin, end = offsets
    if end - begin != needed:
        raise CheckpointError("safetensors.bytes", file=path, name=name, shape=shape, dtype=tag, needed=needed, found=end - begin)
    return Entry(name, dtype, tuple(shape), start + begin, start + end, path, mark)


def _refuse_gaps(entries: list[Entry], start: int, size: int, path: Path) -> None:
    """Raise a CheckpointError unless the tensors' bytes cover the data exactly: no overlap, no hole, nothing before or after."""
    if entries and entries[0].begin != start:
        raise CheckpointError("safetensors.hole_first", file=path, name=entries[0].name, begin=entries[0].begin - start)
    for left, right in pairwise(entries):
        place = {"left": left.name, "right": right.name, "end": left.end - start, "begin": right.begin - start}
        if left.end > right.begin:
            raise CheckpointError("safetensors.overlap", file=path, **place)
        if left.end < right.begin:
            raise CheckpointError("safetensors.hole", file=path, **place)
    covered = entries[-1].end if entries else start
    if covered > size:
        raise CheckpointError("safetensors.truncated", file=path, expected=covered, found=size)
    if covered < size:
        raise CheckpointError("safetensors.trailing", file=path, expected=covered, found=size)
