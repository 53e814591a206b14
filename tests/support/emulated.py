"""The arm64 kernels under qemu as this process's library: any test of the ops then speaks of them.

A call's memory is fetched page by page as the kernels touch it (emulated.cpp), so that nothing is said twice of what an op reads or
writes, and a kernel that reads memory which does not exist is seen. `Emulated` alone computes by arm64. `Compared` lets this machine's
AVX2 library compute too, and raises AssertionError unless both wrote the same bits.

A processor's own: the sign of a NaN; and the C library's exponentials, cosines and powers, for which LIBM gives some units.
"""

import ctypes
import os
import shutil
import struct
import subprocess
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from pellucid.ops.native import attention, drawing, library, make, quantised, routing, twins
from pellucid.ops.native.library import described
from pellucid.ops.native.planned_calls import extent
from tiny import swapped

CXX, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
DRIVER = Path(__file__).with_name("emulated.cpp")
PAGE, MOST = 1 << 12, 1 << 20
LIBM = {"times": 1, "angles": 1, "bend": 2, "waves": 1, "softplus": 2, "decay": 2}  # units in the last place of what the kernel writes
CALLERS = (attention, drawing, quantised, routing, twins)


def missing() -> str | None:
    """Return what the emulation lacks on this machine, or None."""
    lacks = [name for name in (CXX, QEMU) if shutil.which(name) is None]
    if lacks:
        return f"{' and '.join(lacks)} not installed (Debian: g++-aarch64-linux-gnu qemu-user)"
    return None if library.load("avx2") is not None else "kernels_avx2.so is not built, or not for this machine"


def build(name: str, into: Path, sources: Path = make.HERE, *more: str) -> Path:
    """Compile the kernels of an arm64 set, one of make.ARM, with the driver. Raises CalledProcessError if they do not compile."""
    flags = [f for f in make.COMMON if f not in ("-fPIC", "-fvisibility=hidden")]
    out = into / f"emulated_{name}"
    command = [CXX, *flags, *make.ARM[name], "-static", '-DDIGEST=""', *more, str(sources / "kernels.cpp"), str(DRIVER), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


class Emulated:
    """A library whose kernels run in a program under qemu, on this process's memory."""

    tiles = False

    def __init__(self, program: Path) -> None:
        self.path = Path(program.name.replace("emulated", "kernels"))
        self.memory = os.open("/proc/self/mem", os.O_RDONLY)
        self.process = subprocess.Popen([QEMU, "-cpu", "max", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.lock = threading.RLock()  # one call at a time
        self.local = library.load("avx2")
        assert self.local is not None
        self.send(b"k")
        text = self.receive(struct.unpack("=cq", self.receive(9))[1]).decode()
        self.ops = described(text)
        self.burst_words = self.ops.pop("burst")
        self.called, self.calls = set[str](), 0
        self.reads: tuple[torch.Tensor, ...] = ()  # of the next call, where an op has said them
        self.writes: tuple[torch.Tensor, ...] = ()
        self.names = {op.code // 2: name for name, op in self.ops.items()}

    def close(self) -> None:
        """End the program."""
        self.process.kill()
        self.process.wait()
        os.close(self.memory)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def receive(self, count: int) -> bytes:
        """Read `count` bytes of the program's answer. Raises AssertionError if it has ended."""
        assert self.process.stdout is not None
        parts = []
        while count:
            part = self.process.stdout.read(count)
            assert part, f"the emulated kernels ended with status {self.process.wait()}, the last call {self.last}"
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def fetched(self, address: int, touched: dict[int, bytes]) -> tuple[int, bytes]:
        """Return the memory around an address that is not among `touched`: twice as much as the piece that ends there, so far as it
        exists, or else a page, or nothing."""
        start = address // PAGE * PAGE
        size = next((2 * len(data) for at, data in touched.items() if at + len(data) == start), 2 * PAGE)
        size = min(size, MOST, *(at - start for at in touched if at > start))
        for some in (size, PAGE):
            try:
                data = os.pread(self.memory, some, start)
            except OSError:
                continue
            if len(data) == some:
                return start, data
        return address, b""

    def answer(self, request: bytes) -> tuple[int, dict[int, bytes], list[tuple[int, bytes]]]:
        """Have a call run. Returns its result, the memory that it touched as it was, and its changes, (address, bytes) each."""
        touched, changes = dict[int, bytes](), list[tuple[int, bytes]]()
        with self.lock:
            self.send(request)
            while True:
                letter, number = struct.unpack("=cq", self.receive(9))
                if letter == b"d":
                    break
                start, data = self.fetched(number, touched)
                self.send(struct.pack("=qq", start, len(data)) + data)
                touched[start] = data
            while (head := struct.unpack("=qq", self.receive(16)))[1]:
                changes.append((head[0], self.receive(head[1])))
        return number, touched, changes

    def pack_request(self, letter: bytes, words: bytes | int, count: int, threads: int, *more: int) -> bytes:
        """Pack a request, and note which kernels it calls."""
        address = words if isinstance(words, int) else address_of(words)
        at, self.last = address, list[str]()
        for _ in range(count):
            op, fields = struct.unpack("=qq", ctypes.string_at(at, 16))
            self.last.append(self.names[op // 2])
            at += 8 * (3 + fields)
        self.called |= set(self.last)
        self.calls += count
        return letter + struct.pack(f"={3 + len(more)}q", address, count, threads, *more)

    def run(self, words: bytes | int, count: int, threads: int) -> None:
        for address, data in self.answer(self.pack_request(b"r", words, count, threads))[2]:
            ctypes.memmove(address, data, len(data))

    def burst(self, words: bytes | int, count: int, threads: int, line: bytes) -> int:
        result, _, changes = self.answer(self.pack_request(b"b", words, count, threads, address_of(line)))
        for address, data in changes:
            ctypes.memmove(address, data, len(data))
        return result

    def packed(self, rows: int, k: int, half: int) -> int:
        return self.local.packed(rows, k, half)  # type: ignore[union-attr, no-any-return]


class Compared(Emulated):
    """The same, with AVX2's kernels beside it: what stays in memory is theirs, after a comparison."""

    def __init__(self, program: Path) -> None:
        super().__init__(program)
        self.bytes = 0  # that have been compared

    def run(self, words: bytes | int, count: int, threads: int) -> None:
        with self.lock:
            self.compare(words, count, threads)
            self.writes = ()

    def compare(self, words: bytes | int, count: int, threads: int) -> None:
        """Run calls by both. Raises AssertionError where they differ."""
        assert self.local is not None
        _, touched, changes = self.answer(self.pack_request(b"r", words, count, threads))
        spans = joined([(at, at + len(data)) for at, data in changes] + [span for span in map(extent, self.writes) if span[1] > span[0]])
        after = {start: bytearray(data) for start, data in touched.items()}
        starts = sorted(after)
        for at, data in changes:
            start = starts[bisect_right(starts, at) - 1]
            after[start][at - start : at - start + len(data)] = data
        before = [written(start, end, after) for start, end in spans]
        self.local.run(words, count, threads)
        half = ctypes.string_at(words if isinstance(words, int) else address_of(words), 1)[0] % 2
        for (start, end), ours in zip(spans, before, strict=True):
            theirs = ctypes.string_at(start, end - start)
            self.bytes += end - start
            assert ours == theirs or self.same(ours, theirs, half), f"{', '.join(self.last)}: arm64 differs from AVX2"

    def same(self, ours: bytes, theirs: bytes, half: int) -> bool:
        """True if numbers that differ are NaN in both, or lie within the units of the C library's functions."""
        wide = 8 if self.last == ["bend"] else 2 if half and set(self.last) <= LIBM.keys() else 4
        highest = {2: 0x7F80, 4: 0x7F800000, 8: 0x7FF0000000000000}[wide]
        p, q = (np.frombuffer(data, f"<i{wide}").astype(np.int64) for data in (ours, theirs))
        plain = (1 << (8 * wide - 1)) - 1  # without the sign
        nan = ((p & plain) > highest) & ((q & plain) > highest)
        units = max((LIBM.get(name, 0) for name in self.last), default=0)
        return bool((nan | (np.abs(p - q) <= units)).all())


def address_of(data: bytes) -> int:
    """Return where the bytes of an object lie. It must be kept alive."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of addresses widened to whole words of 8 bytes, in order, those that meet as one."""
    out = list[tuple[int, int]]()
    for start, end in sorted((start // 8 * 8, -(-end // 8) * 8) for start, end in spans):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def written(start: int, end: int, after: dict[int, bytearray]) -> bytes:
    """Return the bytes of [start, end) as the emulated call has left the memory that it touched."""
    out = bytearray(ctypes.string_at(start, end - start))
    for at, data in after.items():
        low, high = max(at, start), min(at + len(data), end)
        if low < high:
            out[low - start : high - start] = data[low - at : high - at]
    return bytes(out)


class Told(Protocol):
    """A library of a test, which is told before a call what it reads and writes."""

    lock: threading.RLock
    reads: tuple[torch.Tensor, ...]
    writes: tuple[torch.Tensor, ...]

    def close(self) -> None: ...


@contextmanager
def installed(lib: Told) -> Iterator[None]:
    """Let every op inside run by a library of a test."""
    original = library.call

    def call(name: str, half: int, reads: tuple[torch.Tensor, ...], writes: tuple[torch.Tensor, ...], /, **words: Any) -> None:
        with lib.lock:
            lib.reads, lib.writes = reads, writes
            original(name, half, reads, writes, **words)

    with ExitStack() as stack:
        for module in CALLERS:
            if hasattr(module, "call"):
                stack.enter_context(swapped(module, "call", call))
        stack.enter_context(swapped(library, "lib", lib))
        stack.enter_context(swapped(library, "load", lambda name: lib))
        try:
            yield
        finally:
            lib.close()
