"""A large read is shared out to threads: the same bytes as one thread reads, and the first wrong place in the error."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.checkpoint import disk
from pellucid.errors import CheckpointError

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="one thread reads where the system has no preadv")


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with four threads, in pieces of at least ten bytes."""
    monkeypatch.setattr(disk, "PIECE", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


def read(path: Path, size: int, offset: int) -> bytes:
    """Return `size` bytes of a file."""
    into = bytearray(size)
    with disk.regular(path) as fd:
        disk.read_at(fd, memoryview(into), offset, path)
    return bytes(into)


@pytest.mark.usefixtures("four")
def test_pieces_make_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "f", bytes(i * 7 % 251 for i in range(1000))
    path.write_bytes(content)
    parts, real = list[int](), os.preadv

    def few(fd: int, into: Any, at: int) -> int:
        parts.append(at)
        return real(fd, [into[0][:9]], at)  # a system may give fewer bytes than it is asked for

    monkeypatch.setattr(os, "preadv", few)
    for size, offset in ((1000, 0), (997, 3), (41, 100), (40, 0), (19, 5), (0, 7)):
        parts.clear()
        assert read(path, size, offset) == content[offset : offset + size]
        starts = {offset + size * i // 4 for i in range(4)} if size >= 40 else {offset}
        assert size == 0 or starts <= set(parts)


@pytest.mark.usefixtures("four")
def test_the_first_wrong_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(60))
    with pytest.raises(CheckpointError) as threaded:
        read(path, 100, 4)
    disk.PIECE = 1000  # the fixture puts it back
    with pytest.raises(CheckpointError) as alone:
        read(path, 100, 4)
    assert str(threaded.value) == str(alone.value) and "60" in str(alone.value)


@pytest.mark.usefixtures("four")
def test_a_piece_at_a_wrong_place_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content, part = tmp_path / "f", bytes(range(200)), disk.read_part
    path.write_bytes(content)
    monkeypatch.setattr(disk, "read_part", lambda fd, view, a, b, offset, *how: part(fd, view, a, b, offset + (a > 0), *how))
    assert read(path, 150, 0) != content[:150]
