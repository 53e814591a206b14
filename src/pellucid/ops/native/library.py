"""The compiled kernels: loading them, and calling one.

A call is an op and its 64-bit words, `op, count, after, pointers and numbers ...`; walk.h says how a list of calls runs. The library
describes the words of each kernel (KERNELS in kernels.cpp, FIELDS in each struct), and `call` takes them by these names.

Loading never compiles. If no kernels are built, `available()` is False and every op runs through torch. A checkout whose kernels are
missing or stale warns on stderr, since it does not run its own sources.
"""

import ctypes
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from struct import Struct
from typing import Protocol

import torch
from torch import Tensor

from pellucid.messages import say
from pellucid.ops.native.make import ARM, FLAGS, compiler, digest

HERE = Path(__file__).parent
BUILD = "python src/pellucid/ops/native/make.py"  # in a checkout
HALF = {torch.float32: 0, torch.bfloat16: 1}


class Op:
    """One kernel, from its library's description.

    code: its number in the library, to which bf16 adds 1.  letters: q for an integer, p for a pointer, d for a double.
    fields: the names of its words.
    """

    def __init__(self, name: str, code: int, letters: str, fields: Sequence[str]) -> None:
        self.name, self.code, self.letters, self.fields = name, code, letters, tuple(fields)
        if len(letters) != len(self.fields) or len(set(self.fields)) != len(self.fields):
            raise OSError(f"kernel {name}: {letters} for {' '.join(fields)}")
        words = Struct(f"=3q{letters.replace('p', 'q')}")
        self.packed, self.unpacked = words.pack, words.unpack

    def line(self, half: int, words: Mapping[str, float]) -> bytes:
        """Pack a call, each word in the place of its name. Raises TypeError unless the words are the kernel's own."""
        if len(words) != len(self.fields) or not words.keys() >= set(self.fields):
            raise TypeError(f"kernel {self.name}({', '.join(self.fields)}) called: {', '.join(words)}")
        return self.packed(self.code + half, len(self.fields), 0, *map(words.__getitem__, self.fields))


class Recorder(Protocol):
    """An open recording (plan.Recording), which makes output tensors and records calls."""

    dry: bool

    def paused(self) -> AbstractContextManager[None]: ...
    def fresh(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...
    def add_call(self, op: Op, line: bytes, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> None: ...
    def packed_once(self, x: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor: ...


class ThreadSettings(threading.local):
    """The kernels' settings in one thread."""

    off: bool = False
    any_rows: bool = False
    alone: bool = False  # a row has the bits of a lone run
    recording: Recorder | None = None
    threads: int | None = None  # None: torch's number


here = ThreadSettings()


class Library:
    """A loaded set of kernels. Threads may call it at the same time: ctypes releases the GIL, and calls share no memory.

    Raises OSError for a file that is no library, or is built from other sources.
    """

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL | 2)  # 2: RTLD_NOW, so that a missing OpenMP is found here
        lib.digest.restype = ctypes.c_char_p
        if lib.digest().decode() != digest():  # first: a library of other sources may lack every other symbol
            raise OSError(str(path))
        lib.kernels.restype = ctypes.c_char_p
        self.path, self.run, self.burst, self.packed = path, lib.run, lib.burst, lib.packed
        self.tiles = path.stem == "kernels_amx_bf16"  # bf16 is multiplied in tiles, any number of rows faster than by torch
        self.ops = described(lib.kernels().decode())
        self.burst_words = self.ops.pop("burst")
        self.packed.argtypes, self.packed.restype = (ctypes.c_int64,) * 3, ctypes.c_int64
        self.run.argtypes, self.run.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), None
        self.burst.argtypes, self.burst.restype = (*self.run.argtypes, ctypes.c_void_p), ctypes.c_int64


def described(lines: str) -> dict[str, Op]:
    """Read a library's own description, a kernel a line: "linear ppppqqq w, x, y, bias, rows, n, k"."""
    ops = {}
    for i, line in enumerate(lines.splitlines()):
        name, letters, fields = line.split(" ", 2)
        ops[name] = Op(name, 2 * i, letters, fields.split(", "))
    return ops


def load(name: str) -> Library | None:
    """Load the kernels for an instruction set, one of make.FLAGS.

    None if this machine lacks the set, as loading alone may then end the process, or if they are not built, or built from other sources.
    """
    path = HERE / f"kernels_{name}.so"
    try:
        return Library(path) if name in wanted() and path.exists() else None
    except OSError:
        return None


def wanted() -> tuple[str, ...]:
    """Return the instruction sets of this machine, the fastest first; on x86 as torch reports them (ATEN_CPU_CAPABILITY is obeyed).

    Tiles need the system's permission, which is asked for here and may be refused. A core with tiles multiplies bf16 in vectors at half
    the speed of float32 (89 against 171 GFLOP/s on a Xeon of family 6, model 207); on a Zen 4 core it is twice the speed.
    """
    if FLAGS is ARM:
        return ("neon_dot", "neon") if has_dot_products() else ("neon",)
    can = torch.backends.cpu.get_cpu_capability()
    names = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}.get(can, ())
    if "avx512" not in names:
        return names
    vnni = ("avx512_vnni",) if torch.cpu._is_vnni_supported() else ()
    bf16 = ("avx512_bf16",) if vnni and torch.cpu._is_avx512_bf16_supported() else ()
    if not (bf16 and torch.cpu._is_amx_tile_supported()):
        return bf16 + vnni + names
    return (("amx_bf16",) if torch.cpu._init_amx() else ()) + vnni + bf16 + names


def has_dot_products() -> bool:
    """True if this arm64 processor has dot products of bytes, as the system says (Linux: HWCAP_ASIMDDP)."""
    system = ctypes.CDLL(None)
    if sys.platform != "darwin":
        system.getauxval.argtypes, system.getauxval.restype = (ctypes.c_ulong,), ctypes.c_ulong
        return bool(system.getauxval(16) >> 20 & 1)
    answer, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    known = system.sysctlbyname(b"hw.optional.arm.FEAT_DotProd", ctypes.byref(answer), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0
    return known and bool(answer.value)


def best() -> Library | None:
    """Load the fastest kernels of this machine that are built."""
    return next((lib for name in wanted() if (lib := load(name)) is not None), None)


def unfit(folder: Path = HERE) -> str | None:
    """Return a warning if a checkout's kernels in `folder` are stale or missing.

    None if each library for this machine is built from the sources beside it, if there is neither a library nor a compiler, and in an
    installed wheel.
    """
    if folder.parents[2].name != "src" or not (folder.parents[3] / "hatch_build.py").is_file():
        return None
    paths = [folder / f"kernels_{name}.so" for name in wanted()]
    built = [path for path in paths if path.exists()]
    if paths and not built and compiler() is not None:
        return say("native.missing", file=paths[0].name, command=BUILD)
    own = digest(folder).encode()
    stale = [path.name for path in built if own not in path.read_bytes()]
    return say("native.stale", files=", ".join(stale), command=BUILD) if stale else None


lib = best()
if (sentence := unfit()) is not None:
    warnings.warn(sentence, stacklevel=2)


def available() -> bool:
    """True if the kernels run in this thread."""
    return lib is not None and not here.off


def instructions() -> str | None:
    """Return the instruction set of the kernels that run in this thread, one of make.FLAGS, or None."""
    return lib.path.stem.removeprefix("kernels_") if lib is not None and not here.off else None


@contextmanager
def off() -> Iterator[None]:
    """Run everything inside, in this thread, through torch."""
    outer, here.off = here.off, True
    try:
        yield
    finally:
        here.off = outer


@contextmanager
def any_rows(alone: bool = True) -> Iterator[None]:
    """Let the kernels inside, in this thread, take any number of rows. alone: each row has the bits of a lone run."""
    outer = here.any_rows, here.alone
    here.any_rows, here.alone = True, here.alone or alone
    try:
        yield
    finally:
        here.any_rows, here.alone = outer


def most(rows: int) -> float:
    """Return the most rows that the kernels take in this thread: `rows`, or infinity inside any_rows()."""
    return math.inf if here.any_rows else rows


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate an output tensor. Under a recording its memory belongs to the plan and holds this output alone."""
    return torch.empty(shape, dtype=dtype, device="cpu") if here.recording is None else here.recording.fresh(shape, dtype)


def constant() -> AbstractContextManager[None]:
    """Pause an open recording while torch makes a tensor that is the same at every step, such as a table of the configuration."""
    return nullcontext() if here.recording is None else here.recording.paused()


def threads() -> int:
    """Return the number of threads that a call of this thread runs on."""
    return here.threads or torch.get_num_threads()


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Run the kernels called inside, in this thread, on `count` threads. Their results do not depend on it."""
    outer, here.threads = here.threads, count
    try:
        yield
    finally:
        here.threads = outer


def call(name: str, half: int, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...], /, **words: float) -> None:
    """Run one kernel now, on `threads()` threads, and add the call to an open recording. One that is dry runs nothing.

    half: 0 for float32, 1 for bfloat16.  reads, writes: the tensors behind its pointers.  words: the struct's fields by name.
    """
    assert lib is not None
    op = lib.ops[name]
    line = op.line(half, words)
    if here.recording is not None:
        here.recording.add_call(op, line, reads, writes)
        if here.recording.dry:
            return
    lib.run(line, 1, threads())
