"""Hostile GGUF headers: each is refused in one line that names the file and the place, before anything of its size is allocated."""

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from campaigns.gguf import KEYS, TENSORS, file_bytes, with_offsets
from pellucid.checkpoint.gguf.gguf_header import read_gguf
from pellucid.checkpoint.gguf.gguf_writer import kept, text
from pellucid.errors import CheckpointError

ENTRIES, DATA = with_offsets(TENSORS)
RAW_KEYS = [text(k) + kept(v) for k, v in KEYS.items()]


def raw(keys: list[bytes] | None = None, tensors: Any = ENTRIES, data: bytes = DATA) -> bytes:
    return file_bytes(RAW_KEYS if keys is None else keys, tensors, data)


def key(kind: int, value: bytes = b"", name: str = "x") -> bytes:
    """Return one key of a kind, with any bytes as its value."""
    return text(name) + struct.pack("<I", kind) + value


def start(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def one(name: str = "t", kind: int = 0, shape: tuple[int, ...] = (4,), offset: int = 0) -> list[tuple[str, int, tuple[int, ...], int]]:
    return [(name, kind, shape, offset)]


CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "begins with b''"),
    "short": (b"GGUF\x03", "version at byte 4 needs 4 bytes"),
    "another format": (b"\x80\x00\x00\x00{}", "begins with"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 is not read"),
    "version 1": (start(0, 0, 1), "version 1 is not read"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    "web page": (b"<!DOCTYPE html><html>", "web page"),
    "2^63 tensors": (start(2**63, 0), "tensors claims 9223372036854775808; at most"),
    "2^60 keys": (start(0, 2**60), "keys claims"),
    "keys that are not there": (start(0, 4000), "keys at byte 24 needs 52000 bytes"),
    "long name": (start(0, 1) + struct.pack("<Q", 2**40) + bytes(100), r"keys\[0\] claims 1099511627776; at most 255"),
    "no UTF-8": (start(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(40), r"keys\[0\] is not UTF-8 at byte 32"),
    "unknown kind": (raw([key(13, bytes(8))]), "kind 13"),
    "truth of 2": (raw([key(7, b"\x02")]), "truth value 2"),
    "array of arrays": (raw([key(9, struct.pack("<IQ", 9, 1))]), "no array is in an array"),
    "array of 2^50": (raw([key(9, struct.pack("<IQ", 0, 2**50))]), "at most 2097152"),
    "array beyond the file": (raw([key(9, struct.pack("<IQ", 10, 2**21))]), "needs 16777216 bytes"),
    "texts beyond the file": (raw([key(9, struct.pack("<IQ", 8, 2**20))]), "needs 8388608 bytes"),
    "key twice": (raw([key(4, bytes(4)), key(4, bytes(4))]), "called x for the second time"),
    "alignment 3": (raw([key(4, struct.pack("<I", 3), "general.alignment")]), "general.alignment is 3"),
    "alignment 0": (raw([key(4, struct.pack("<I", 0), "general.alignment")]), "general.alignment is 0"),
    "alignment true": (raw([key(7, b"\x01", "general.alignment")]), "general.alignment is True"),
    "alignment 2^31": (raw([key(4, struct.pack("<I", 2**31), "general.alignment")]), "general.alignment is 2147483648"),
    "tensor twice": (raw([], [*one(), *one(offset=32)], bytes(64)), "called t for the second time"),
    "no name": (raw([], one(""), bytes(32)), "has no name"),
    "no axis": (raw([], one(shape=()), bytes(32)), "has 0 axes"),
    "5 axes": (raw([], one(shape=(1,) * 5), bytes(32)), "has 5 axes"),
    "axis of 0": (raw([], one(shape=(0, 4)), bytes(32)), "has shape"),
    "sizes that overflow": (raw([], one(shape=(2**39, 2**39)), bytes(32)), "has shape"),
    "unknown type": (raw([], one(kind=99), bytes(32)), "stored as 99"),
    "known type that is not read": (raw([], one(kind=16, shape=(256,)), bytes(96)), "stored as IQ2_XXS"),
    "half a block": (raw([], one(kind=8, shape=(33, 1)), bytes(96)), "33 numbers; Q8_0 has blocks of 32"),
    "crooked offset": (raw([], one(offset=4), bytes(64)), "begins at 4, which is no multiple of 32"),
    "hole first": (raw([], one(offset=32), bytes(64)), "begins at 32; it must begin at 0"),
    "overlap": (raw([], [*one(shape=(16,)), *one("u", offset=32)], bytes(64)), "overlap"),
    "hole": (raw([], [*one(), *one("u", offset=64)], bytes(96)), "hole between"),
    "offset of 2^63": (raw([], [*one(), *one("u", offset=2**63)], bytes(64)), "hole between"),
    "cut off": (raw(data=DATA[:-64]), "was it cut off"),
    "trailing": (raw(data=DATA + bytes(32)), "describes only"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_header(case: str, tmp_path: Path) -> None:
    content, why = CASES[case]
    (tmp_path / "model.gguf").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=why) as caught:
            read_gguf(tmp_path / "model.gguf")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value) and "model.gguf" in str(caught.value)


def test_sound_header_and_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(raw())
    header = read_gguf(tmp_path / "model.gguf")
    assert header.keys.keys() == KEYS.keys() and header.tensors.keys() == TENSORS.keys()
    assert header.keys["llama.attention.layer_norm_rms_epsilon"] == 1e-5  # the shortest decimal number of its float32
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")
