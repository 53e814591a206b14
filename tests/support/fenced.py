"""A library whose kernels meet the end of memory: each call runs on copies that end, and on copies that begin, at a page without access.

A read or a write of one byte too many ends the process with SIGSEGV, also one by tiles or under a mask, which GCC's sanitizers do not see;
so does a write to what a call only reads. Copies that end at a page begin at odd addresses, and what a kernel writes must have the same
bits there, at the start of a page, and in place.

What a call finds by addresses in memory (the rows of another text), plans and bursts run in place alone.
"""

import ctypes
import mmap
import os
import signal
import struct
import threading
from pathlib import Path

from torch import Tensor

from pellucid.ops.native.library import Library
from pellucid.ops.native.planned_calls import Range, extent

PAGE = mmap.PAGESIZE
SHUT, READ_ONLY = 0, 1  # PROT_NONE, PROT_READ
MORE = {"stream": ("bytes", 1 << 18), "experts": ("experts", 1), "scan": ("heads", 1)}  # what a greedy call adds to a word
ROWS = ("rows", "n")  # elsewhere it adds one to the first of these that a kernel has
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def protect(start: int, size: int, rights: int) -> None:
    """Set the rights to whole pages. Raises OSError if the system refuses."""
    if LIBC.mprotect(start, size, rights):
        raise OSError(ctypes.get_errno(), "mprotect")


class FencedCopy:
    """A copy of the bytes [start, end) between two shut pages: it ends at the second one if `at_end`, else it begins at the first one."""

    def __init__(self, span: Range, at_end: bool, written: bool) -> None:
        self.start, self.end = span
        size = self.end - self.start
        inner = -(-size // PAGE) * PAGE
        self.memory = mmap.mmap(-1, inner + 2 * PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + PAGE
        self.at = first + (inner - size if at_end else 0)
        ctypes.memmove(self.at, self.start, size)
        protect(first - PAGE, PAGE, SHUT)
        protect(first + inner, PAGE, SHUT)
        if not written:
            protect(first, inner, READ_ONLY)

    def place(self, address: int) -> int | None:
        """Return where an address of the original lies in the copy. None if it is none of it."""
        return self.at + address - self.start if self.start <= address < self.end else None


class Fenced:
    """A library whose single calls run at the end of memory, at its start, and in place. `called`: the kernels that ran so.

    greedy: a mutant; the first call of each kernel also runs with one row more, in a process of its own. `unseen`: those that live.
    Raises AssertionError if a call writes other bits in one place than in another, or points to what it says it neither reads nor writes.
    """

    def __init__(self, path: Path, greedy: bool = False) -> None:
        self.plain = Library(path)
        self.path, self.tiles, self.packed, self.burst = path, self.plain.tiles, self.plain.packed, self.plain.burst
        self.ops, self.burst_words = self.plain.ops, self.plain.burst_words
        self.names = {op.code // 2: name for name, op in self.ops.items()}
        self.lock, self.greedy = threading.RLock(), greedy
        self.reads: tuple[Tensor, ...] = ()  # of the next call, as its op has said
        self.writes: tuple[Tensor, ...] = ()
        self.called, self.unseen, self.calls = set[str](), set[str](), 0

    def close(self) -> None:
        """Leave the library loaded."""

    def run(self, words: bytes | int, count: int, threads: int) -> None:
        results = []
        if isinstance(words, bytes) and self.writes:
            assert count == 1
            written = joined([extent(t) for t in self.writes if t.numel()])
            if self.greedy and self.name(words) not in self.called:
                self.starve(words, written)
            results = [self.result(words, threads, written, at_end) for at_end in (True, False)]
            self.called.add(self.name(words))
            self.calls += 1
        self.plain.run(words, count, threads)
        for result in results:
            in_place = [ctypes.string_at(start, end - start) for start, end in written]
            assert result == in_place, f"{self.name(words)}: other bits at another place in memory"  # type: ignore[arg-type]
        self.reads = self.writes = ()

    def name(self, words: bytes) -> str:
        return self.names[struct.unpack_from("=q", words)[0] // 2]

    def result(self, words: bytes, threads: int, written: list[Range], at_end: bool, more: bool = False) -> list[bytes]:
        """Run a call on copies. Returns what it has left in the ranges `written`. more: with one row more."""
        op = self.ops[self.name(words)]
        spans = joined([extent(t) for t in (*self.reads, *self.writes) if t.numel()])
        copies = [FencedCopy(s, at_end, any(s[0] < end and start < s[1] for start, end in written)) for s in spans]
        fields = list(struct.unpack(f"={3 + len(op.fields)}q", words))
        for i, letter in enumerate(op.letters, 3):
            if letter == "p" and fields[i]:
                fields[i] = self.moved(fields[i], copies, f"{op.name}'s {op.fields[i - 3]}")
        if more:
            word, by = MORE.get(op.name) or (next(word for word in ROWS if word in op.fields), 1)
            fields[3 + op.fields.index(word)] += by
        self.plain.run(struct.pack(f"={len(fields)}q", *fields), 1, threads)
        return [ctypes.string_at(self.moved(start, copies, op.name), end - start) for start, end in written]

    def moved(self, address: int, copies: list[FencedCopy], what: str) -> int:
        place = next((p for copy in copies if (p := copy.place(address)) is not None), None)
        assert place is not None, f"{what} is neither read nor written, by what its op says"
        return place

    def starve(self, words: bytes, written: list[Range]) -> None:
        """Run a call with one row more in a process of its own, which is to end by SIGSEGV."""
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            self.result(words, 1, written, at_end=True, more=True)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGSEGV:
            self.unseen.add(self.name(words))


def joined(spans: list[Range]) -> list[Range]:
    """Return ranges of addresses in order, those that overlap as one."""
    out = list[Range]()
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out
