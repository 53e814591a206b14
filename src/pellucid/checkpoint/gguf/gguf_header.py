"""The header of a GGUF file, read by our own strict parser; the `gguf` package judges it in the tests.

    4 bytes     "GGUF"
    4 bytes     the version, 2 or 3; every number is little-endian
    8 + 8       the number of tensors, the number of keys
    keys        each a name, a kind, a value: a number, a truth value, a text, or an array of one of these kinds
    tensors     each a name, the number of axes, their sizes from the fastest on, a type, an offset
    the rest    the tensors' bytes, from the next multiple of general.alignment on; an offset counts from there

Every claimed number is compared with what the file can hold before anything is allocated for it.
"""

import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy
import torch

from pellucid.checkpoint.disk import Stamp, read_at, refuse_stand_in, regular, stamp
from pellucid.checkpoint.gguf.block_types import BY_CODE, TYPES, UNREAD
from pellucid.checkpoint.gguf.packed_tensor import PackedTensor, row_entry
from pellucid.checkpoint.json_file import TABLE_BYTES
from pellucid.checkpoint.safetensors_file import LARGEST_AXIS, Entry
from pellucid.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS, MOST_TENSORS, MOST_ITEMS = 1 << 12, 1 << 16, 1 << 21  # of a file, of a file, of an array
LONGEST_NAME = 255  # bytes of a key or of a tensor's name
MOST_AXES = 4
MOST_ALIGNMENT = 1 << 16
STRIP = 1 << 20  # bytes of a header that are read at a time
KINDS = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "text", "array", "<u8", "<i8", "<f8")  # by their numbers in files
TEXT, ARRAY, FLOAT32 = KINDS.index("text"), KINDS.index("array"), KINDS.index("<f4")
Tensors = dict[str, Entry | PackedTensor]


@dataclass(frozen=True)
class GgufHeader:
    """What a file says of itself. keys: values by name, an array of numbers as NumPy's.  tensors: by name, in the order of their bytes."""

    file: Path
    keys: dict[str, Any]
    tensors: Tensors


class Cursor:
    """A place in a header that moves on as it is read; bytes come from the file a strip at a time."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd, self.path, self.size = fd, path, os.fstat(fd).st_size
        self.raw, self.at = bytearray(), 0

    def take(self, count: int, part: str) -> bytes:
        """Return the next bytes. A CheckpointError that names `part` where the file or the longest header ends before them."""
        end = self.at + count
        if end > min(self.size, TABLE_BYTES):
            limit = min(self.size, TABLE_BYTES)
            raise CheckpointError("gguf.ends", file=self.path, part=part, offset=self.at, needed=count, limit=limit)
        if end > len(self.raw):
            more = bytearray(min(self.size, max(end, len(self.raw) + STRIP)) - len(self.raw))
            read_at(self.fd, memoryview(more), len(self.raw), self.path)
            self.raw += more
        start, self.at = self.at, end
        return bytes(memoryview(self.raw)[start:end])

    def number(self, form: str, part: str) -> int:
        """Return the next number, unsigned of four or eight bytes: "I" or "Q"."""
        value: int = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}"), part))[0]
        return value

    def count(self, part: str, limit: int, least: int) -> int:
        """Return the next count of eight bytes. Each of what it counts takes at least `least` bytes."""
        value = self.number("Q", part)
        if value > limit:
            raise CheckpointError("gguf.many", file=self.path, part=part, found=value, limit=limit)
        if value * least > self.size - self.at:
            raise CheckpointError("gguf.ends", file=self.path, part=part, offset=self.at, needed=value * least, limit=self.size)
        return value

    def text(self, part: str, limit: int = TABLE_BYTES) -> str:
        """Return the next text: its length in bytes, then UTF-8."""
        start, size = self.at, self.count(part, limit, 1)
        try:
            return str(self.take(size, part), "utf-8")
        except UnicodeDecodeError as broken:
            raise CheckpointError("gguf.text", file=self.path, part=part, offset=start + 8 + broken.start) from None

    def value(self, name: str, kind: int, nested: bool = False) -> Any:
        """Return the value of a key, of the kind with this number."""
        if kind >= len(KINDS) or (nested and kind == ARRAY):
            raise CheckpointError("gguf.kind", file=self.path, name=name, offset=self.at, found=kind, most=len(KINDS) - 1)
        if kind == TEXT:
            return self.text(name)
        if kind != ARRAY:
            return self.numbers(name, kind, 1)[0].item() if kind != FLOAT32 else shortest(self.numbers(name, kind, 1)[0])
        inner = self.number("I", name)
        if inner == TEXT:
            return [self.text(name) for _ in range(self.count(name, MOST_ITEMS, 8))]
        if inner >= len(KINDS) or inner == ARRAY:
            return self.value(name, inner, nested=True)
        return self.numbers(name, inner, self.count(name, MOST_ITEMS, numpy.dtype(KINDS[inner]).itemsize))

    def numbers(self, name: str, kind: int, count: int) -> Any:
        """Return the next numbers of a kind. A truth value is 0 or 1."""
        raw = self.take(count * numpy.dtype(KINDS[kind]).itemsize, name)
        if KINDS[kind] == "?" and any(byte > 1 for byte in raw):
            raise CheckpointError("gguf.truth", file=self.path, name=name, found=max(raw))
        return numpy.frombuffer(raw, KINDS[kind])


def shortest(value: Any) -> float:
    """Return the shortest decimal number that a float32 stands for: 1e-05, not 9.999999747378752e-06."""
    return float(str(value))


def read_gguf(path: Path) -> GgufHeader:
    """Return the header of a GGUF file. A CheckpointError if anything in it is not as the format has it."""
    with regular(path) as fd:
        mark, cursor = stamp(fd), Cursor(fd, path)
        head = bytearray(min(cursor.size, 512))
        read_at(fd, memoryview(head), 0, path)
        refuse_stand_in(bytes(head), path)
        if head[:4] != MAGIC:
            raise CheckpointError("gguf.magic", file=path, found=bytes(head[:4]))
        cursor.take(4, "GGUF")
        if (version := cursor.number("I", "version")) not in VERSIONS:
            raise CheckpointError("gguf.version", file=path, found=version, allowed=", ".join(map(str, VERSIONS)))
        many = cursor.count("tensors", MOST_TENSORS, 25)
        keys = read_keys(cursor, cursor.count("keys", MOST_KEYS, 13))
        tensors = read_tensors(cursor, many, alignment(keys, path), mark)
    return GgufHeader(path, keys, tensors)


def read_keys(cursor: Cursor, count: int) -> dict[str, Any]:
    """Return the keys of a header."""
    keys: dict[str, Any] = {}
    for index in range(count):
        name = cursor.text(f"keys[{index}]", LONGEST_NAME)
        if name in keys:
            raise CheckpointError("gguf.twice", file=cursor.path, name=name)
        keys[name] = cursor.value(name, cursor.number("I", name))
    return keys


def alignment(keys: dict[str, Any], path: Path) -> int:
    """Return the multiple at which each tensor begins, 32 where the file says nothing."""
    value = keys.get("general.alignment", 32)
    if type(value) is not int or not 8 <= value <= MOST_ALIGNMENT or value & (value - 1):
        raise CheckpointError("gguf.alignment", file=path, found=value, most=MOST_ALIGNMENT)
    return value


def read_tensors(cursor: Cursor, count: int, step: int, mark: Stamp) -> Tensors:
    """Return the tensors of a header, once their places are known not to overlap. step: the alignment."""
    described: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for index in range(count):
        name = cursor.text(f"tensors[{index}]", LONGEST_NAME)
        if name in described or not name:
            raise CheckpointError("gguf.twice", file=cursor.path, name=name)
        if not 0 < (axes := cursor.number("I", name)) <= MOST_AXES:
            raise CheckpointError("gguf.axes", file=cursor.path, name=name, found=axes, limit=MOST_AXES)
        shape = tuple(cursor.number("Q", name) for _ in range(axes))[::-1]
        if not all(0 < n < LARGEST_AXIS for n in shape) or prod(shape) >= 1 << 60:
            raise CheckpointError("gguf.shape", file=cursor.path, name=name, shape=shape)
        described[name] = cursor.number("I", name), shape, cursor.number("Q", name)
    start = -(-cursor.at // step) * step
    sorted_tensors = [placed_at(n, *described[n], start, step, Entry(n, torch.uint8, (), 0, 0, cursor.path, mark)) for n in described]
    sorted_tensors.sort(key=lambda t: place_of(t))
    refuse_gaps(sorted_tensors, start, step, cursor)
    return {t.name: t for t in sorted_tensors}


def placed_at(name: str, code: int, shape: tuple[int, ...], offset: int, start: int, step: int, like: Entry) -> Entry | PackedTensor:
    """Return the tensor of a description. offset: from `start`, a multiple of `step`.  like: has the file and its stamp."""
    kind = BY_CODE.get(code)
    if kind is None:
        raise CheckpointError(
            "gguf.type", file=like.file, name=name, found=UNREAD.get(code, code), allowed=", ".join(t.name for t in TYPES)
        )
    if offset % step:
        raise CheckpointError("gguf.offset", file=like.file, name=name, found=offset, step=step)
    if shape[-1] % kind.block:
        raise CheckpointError("gguf.row", file=like.file, name=name, found=shape[-1], kind=kind.name, block=kind.block)
    begin = start + offset
    if kind.plain is not None:
        return Entry(name, kind.plain, shape, begin, begin + prod(shape) * kind.bytes, like.file, like.stamp)
    return PackedTensor(name, kind, shape, row_entry(name, kind, shape, begin, like))


def place_of(tensor: Entry | PackedTensor) -> tuple[int, int]:
    """Return where a tensor's bytes begin and end."""
    entry = tensor.raw if isinstance(tensor, PackedTensor) else tensor
    return entry.begin, entry.end


def refuse_gaps(tensors: list[Entry | PackedTensor], start: int, step: int, cursor: Cursor) -> None:
    """Raise a CheckpointError unless each tensor begins at the first multiple of `step` after the one before, and the file ends there."""
    path, places = cursor.path, [place_of(t) for t in tensors]
    if places and places[0][0] != start:
        raise CheckpointError("safetensors.hole_first", file=path, name=tensors[0].name, begin=places[0][0] - start)
    for (left, (_, end)), (right, (begin, _)) in pairwise(zip(tensors, places, strict=True)):
        names = {"left": left.name, "right": right.name, "end": end - start, "begin": begin - start}
        if begin < end:
            raise CheckpointError("safetensors.overlap", file=path, **names)
        if begin >= end + step:
            raise CheckpointError("safetensors.hole", file=path, **names)
    last = places[-1][1] if places else cursor.at
    if last > cursor.size:
        raise CheckpointError("safetensors.truncated", file=path, expected=last, found=cursor.size)
    if cursor.size >= last + step:
        raise CheckpointError("safetensors.trailing", file=path, expected=last, found=cursor.size)
