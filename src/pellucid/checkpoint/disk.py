"""Bytes from and to the disk: regular files only, exact reads at an offset, atomic writes.

A file is never mapped: a mapped file that another process truncates kills the reader, a short read is an error with a place.
"""

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from pellucid.errors import CheckpointError, PellucidError

MOST_PER_READ = 1 << 30  # Linux returns at most 2,147,479,552 bytes for one read, so every read is a loop
PIECE = 4 << 20  # bytes: the least that is worth a thread

ErrorType = type[PellucidError]
Stamp = tuple[int, int, int, int]  # device, inode, size, time of the last change in ns


def stamp(fd: int) -> Stamp:
    """Return a stamp that differs for any other file, and for any later content of this one."""
    seen = os.fstat(fd)
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


@contextmanager
def regular(path: Path, error: ErrorType = CheckpointError) -> Iterator[int]:
    """Yield a descriptor of a regular file, open for reading; a pipe, device or folder is refused without waiting for it."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise error("file.missing", file=path) from None
    except (OSError, ValueError) as broken:
        raise error("file.closed", file=path, reason=reason(broken)) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise error("file.kind", file=path)
        yield fd
    finally:
        os.close(fd)


def read_at(fd: int, view: memoryview, offset: int, path: Path, error: ErrorType = CheckpointError) -> None:
    """Fill all of `view` (bytes) from the file at `offset`, or raise an error with the first place that is wrong.

    Many bytes are read by torch's number of threads at once: copying them from the page cache, into memory that is new, takes a core.
    """
    threads = 1
    if len(view) >= 2 * PIECE and hasattr(os, "preadv"):
        import torch  # here, since a tokenizer is read without it

        threads = min(torch.get_num_threads(), len(view) // PIECE)
    if threads < 2:
        read_part(fd, view, 0, len(view), offset, path, error)
        return
    edges = [len(view) * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        reads = [pool.submit(read_part, fd, view, a, b, offset, path, error) for a, b in pairwise(edges)]
    for read in reads:
        read.result()


def read_part(fd: int, view: memoryview, begin: int, end: int, offset: int, path: Path, error: ErrorType) -> None:
    """Fill view[begin:end] from the file, whose byte at `offset` belongs at view[0], or raise an error with the place."""
    done = begin
    while done < end:
        try:
            part = view[done : min(end, done + MOST_PER_READ)]
            if hasattr(os, "preadv"):
                got = os.preadv(fd, [part], offset + done)
            else:
                os.lseek(fd, offset + done, os.SEEK_SET)
                data = os.read(fd, len(part))
                got = len(data)
                part[:got] = data
        except OSError as broken:
            raise error("file.read", file=path, offset=offset + done, reason=reason(broken)) from None
        if got <= 0:
            raise error("file.short", file=path, offset=offset + done, missing=len(view) - done)
        done += got


def read_whole(path: Path, limit: int, error: ErrorType = CheckpointError) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    return read_marked(path, limit, error)[0]


def read_marked(path: Path, limit: int, error: ErrorType = CheckpointError) -> tuple[bytes, Stamp]:
    """Return the content of a regular file of at most `limit` bytes, and the file's stamp."""
    with regular(path, error) as fd:
        mark = stamp(fd)
        size = os.fstat(fd).st_size
        if size > limit:
            raise error("file.large", file=path, size=size, limit=limit)
        content = bytearray(size)
        read_at(fd, memoryview(content), 0, path, error)
    return bytes(content), mark


def read_text(path: Path, limit: int, error: ErrorType = CheckpointError) -> str:
    """Return the text of a file of at most `limit` bytes of UTF-8, its lines ended by "\\n"."""
    raw = read_whole(path, limit, error)
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as broken:
        raise error("json.encoding", file=path, offset=broken.start, found=raw[broken.start : broken.start + 4].hex(" ")) from None


def refuse_stand_in(head: bytes, path: Path, error: ErrorType = CheckpointError) -> None:
    """Raise if a file begins like the result of a failed download: a Git LFS pointer or an HTML page."""
    start = head[:512].lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        raise error("file.lfs", file=path)
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise error("file.html", file=path)


def inside(folder: Path, name: str, error: ErrorType = CheckpointError) -> Path:
    """Return the path of a plain file name in a folder. It may be a link, but only into the folder itself or the hub cache's `blobs`.

    The cache keeps a model at models--owner--name/snapshots/commit, its blobs at models--owner--name/blobs; those may be links into a
    store that all models share, `blobs` beside them. Every entry of a folder is opened through this function: it raises Python's audit
    event "pellucid.inside", so that a test finds any other open.
    """
    if not name or name in (".", "..") or any(c in name for c in "/\\\0:"):
        raise error("file.name", file=folder, name=name)
    root = folder.resolve()
    roots = [root]
    if commit := next((place for place in (root, root.parent) if place.parent.name == "snapshots"), None):
        model = commit.parent.parent
        roots += [model / "blobs", *([model.parent / "blobs"] if model.name.startswith("models--") else [])]
    try:
        target = (root / name).resolve()
    except (OSError, RuntimeError) as broken:
        raise error("file.closed", file=folder / name, reason=reason(broken)) from None
    if not any(target.is_relative_to(allowed) for allowed in roots):
        raise error("file.outside", file=folder / name, target=target)
    sys.audit("pellucid.inside", str(folder / name))
    return folder / name


@contextmanager
def replacing(path: Path, error: ErrorType = CheckpointError) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; on success it is synced and renamed to `path`, else removed."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise error("file.device", file=path)  # a rename would put a file in the place of a device
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        yield part
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    except OSError as broken:
        raise error("file.write", file=path, reason=reason(broken)) from None
    finally:
        with suppress(OSError):  # it is renamed, or the disk is read-only by now
            part.unlink()


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's list of names, to the disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows opens no folders
    fd = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_memory() -> int | None:
    """Return the machine's available bytes of memory, None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def require_memory(needed: int, what: Path, free: Callable[[], int | None] = free_memory) -> None:
    """Raise a CheckpointError if `needed` bytes exceed the free memory."""
    available = free()
    if available is not None and needed > available:
        raise CheckpointError("file.memory", file=what, needed=f"{needed / 1e9:.1f}", free=f"{available / 1e9:.1f}")


def reason(broken: Exception) -> str:
    """Return the operating system's message for a failure."""
    return getattr(broken, "strerror", None) or str(broken) or type(broken).__name__
