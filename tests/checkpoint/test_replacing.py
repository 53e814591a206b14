"""What is written beside and renamed never takes the place of a device or a pipe."""

import os
import stat
from pathlib import Path

import pytest

from pellucid.checkpoint.disk import replacing
from pellucid.errors import CheckpointError


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """As root a run written to /dev/null would leave a file in its place, for every program of the machine."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="only regular files are written over"), replacing(path) as part:
        part.write_text("x")
    assert stat.S_ISFIFO(path.stat().st_mode) and [*tmp_path.iterdir()] == [path]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
    assert path.read_text() == "new" and [*tmp_path.iterdir()] == [path]
