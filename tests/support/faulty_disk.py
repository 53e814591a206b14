"""A disk that fails at the n-th call that changes a run's folder, by a library that is loaded before all others (faulty_disk.cpp)."""

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".cpp")
LIBRARY = "PELLUCID_TEST_FAULTY_DISK"  # the variable with the place of the compiled library
OPEN, WRITE, SYNC, RENAME, REMOVE = 1, 2, 4, 8, 16
FOREVER = 1 << 30


class Fault(NamedTuple):
    """A kind of fault. calls: that can have it.  count: how many in a row.  short: half of a write is done, and none fails."""

    number: int
    calls: int
    count: int = 1
    short: bool = False


FAULTS = {
    "EIO": Fault(errno.EIO, WRITE | SYNC | RENAME),
    "ENOSPC": Fault(errno.ENOSPC, OPEN | WRITE | SYNC | RENAME, FOREVER),
    "EROFS": Fault(errno.EROFS, OPEN | WRITE | SYNC | RENAME | REMOVE, FOREVER),
    "short": Fault(0, WRITE, 1, True),
}


def compiled(folder: Path) -> Path | None:
    """Return the compiled library, None without a compiler."""
    compiler, out = shutil.which("g++"), folder / "faulty_disk.so"
    if compiler is None:
        return None
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", out, SOURCE, "-ldl"], check=True)
    return out


class FaultyDisk:
    """The library in this process, which was started with it. kind: of the fault."""

    def __init__(self, kind: str) -> None:
        self.fault, self.library = FAULTS[kind], ctypes.CDLL(os.environ[LIBRARY])
        self.library.counted.restype, self.library.failed.restype = ctypes.c_long, ctypes.c_char_p
        self.library.arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int]

    @contextmanager
    def failing(self, folder: Path, n: int) -> Iterator[None]:
        """Let the n-th call that changes `folder` fail within the block, none for 0."""
        f = self.fault
        self.library.arm(str(folder).encode(), n, f.count, f.calls, f.number, int(f.short))
        try:
            yield
        finally:
            self.calls, self.place = self.library.counted(), self.library.failed().decode()
            self.library.arm(b"", 0, 0, 0, 0, 0)
