"""A GGUF file written whole or not at all: keys, descriptions of the tensors, then their bytes one after the other.

A text, truth value, number or list of one of these is stored in the kind that llama.cpp uses for it: uint32 and float32 for numbers,
int32 in lists.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
from torch import Tensor

from pellucid.checkpoint.disk import replacing
from pellucid.checkpoint.gguf.block_types import BY_NAME
from pellucid.checkpoint.gguf.gguf_header import MAGIC
from pellucid.checkpoint.gguf.packed_tensor import FORMS, packed
from pellucid.ops.blocks import Blocks, quantised
from pellucid.ops.precision import wide

ALIGNMENT = 32
UINT32, INT32, FLOAT32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor to write. kind: the name of its type.  value(): its numbers, or blocks of ours with the same codes."""

    name: str
    kind: str
    shape: Sequence[int]
    value: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        kind = BY_NAME[self.kind]
        return prod(self.shape) // kind.block * kind.bytes


def write_gguf(path: Path, keys: Mapping[str, Any], tensors: Iterable[WrittenTensor]) -> None:
    """Write a file of version 3: a temporary file, synced, then renamed; a failure changes nothing."""
    ready = list(tensors)
    with replacing(path) as part, part.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", 3, len(ready), len(keys)))
        for name, value in keys.items():
            file.write(text(name) + kept(value))
        offset = 0
        for t in ready:
            sizes = struct.pack(f"<{len(t.shape)}Q", *reversed(t.shape))
            file.write(text(t.name) + struct.pack("<I", len(t.shape)) + sizes + struct.pack("<IQ", BY_NAME[t.kind].code, offset))
            offset += t.bytes + -t.bytes % ALIGNMENT
        pad(file)
        for t in ready:
            write_tensor(file, t)
            pad(file)


def pad(file: BinaryIO) -> None:
    """Write zeros up to the next multiple of the alignment."""
    file.write(bytes(-file.tell() % ALIGNMENT))


def text(value: str) -> bytes:
    """Return a text as the format has it: its length in bytes, then UTF-8."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def kept(value: Any) -> bytes:
    """Return the kind and the value of a key."""
    if isinstance(value, list):
        if isinstance(value[0], str):
            return struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(text, value))
        kind, form = (FLOAT32, "<f4") if isinstance(value[0], float) else (INT32, "<i4")
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + numpy.array(value, form).tobytes()
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + text(value)
    return struct.pack("<II", UINT32, value) if isinstance(value, int) else struct.pack("<If", FLOAT32, value)


def write_tensor(file: BinaryIO, tensor: WrittenTensor) -> None:
    """Write a tensor's bytes; plain numbers are rounded to its type."""
    value, kind = tensor.value(), BY_NAME[tensor.kind]
    if kind.plain is None:
        form = FORMS[tensor.kind]
        blocks = value if isinstance(value, Blocks) and value.format == form else quantised(dense(value), form)
        raw = packed(blocks.codes, blocks.scales, tensor.kind)
    else:
        raw = dense(value).to(kind.plain).contiguous().view(-1).view(torch.uint8)
    file.write(raw.contiguous().numpy().tobytes())


def dense(value: Tensor) -> Tensor:
    """Return plain numbers."""
    return value.plain(wide(value.dtype)) if isinstance(value, Blocks) else value
