"""The compiled kernels: which are loaded, how one is called, and where a recording listens.

A call is an op and its 64-bit words, `op, count, after, pointers and numbers ...`; walk.h says how a list of them runs. Loading
never compiles; where there is nothing to load, `available()` is False and every op runs through torch. A checkout whose kernels are
missing or older than their sources is told so by a warning, for what runs is then not what its sources say.
"""

import ctypes
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from struct import Struct
from typing import Protocol

import torch
from torch import Tensor

from pellucid.messages import say
from pellucid.ops.native.make import compiler, digest

HERE = Path(__file__).parent
BUILD = "pellucid.ops.native.build"
HALF = {torch.float32: 0, torch.bfloat16: 1}


class Op:
    """One kernel. fields: its words after the header as `struct` letters, q for an integer or a pointer, d for a double."""

    def __init__(self, name: str, fields: str) -> None:
        self.name, self.count = name, len(fields)
        self.code = 2 * NAMES.index(name)
        self.pack = Struct(f"=3q{fields}").pack


NAMES = ("linear", "embedding", "norm", "add", "gate", "angles", "rotate", "store", "attend", "argmax", "stream", "times", "linear_wide",
         "softmax", "correct", "best", "shares", "sort", "experts", "weigh", "combine", "latent", "cross_attend", "waves", "bend",
         "linear_int8", "linear_int4", "embedding_int8", "embedding_int4", "pack", "many", "many_wide", "cool", "indices_between",
         "masses", "experts_int8", "experts_int4")  # fmt: skip
LINEAR, EMBEDDING, NORM, ADD = Op("linear", "qqqqqqq"), Op("embedding", "qqqqqq"), Op("norm", "qqqqqqqdqq"), Op("add", "qqqq")
GATE, ANGLES, ROTATE = Op("gate", "qqqqqd"), Op("angles", "qqqqqqqqd"), Op("rotate", "qqqqqqqqqqq")
STORE, ATTEND, ARGMAX, STREAM = Op("store", "qqqqqqqq"), Op("attend", "q" * 22 + "ddd"), Op("argmax", "qqqq"), Op("stream", "qqq")
TIMES, LINEAR_WIDE = Op("times", "qqqqqqqd"), Op("linear_wide", "qqqqqqq")
SOFTMAX, CORRECT, BEST, SHARES = Op("softmax", "qqqq"), Op("correct", "qqqqq"), Op("best", "q" * 8), Op("shares", "qqqqqqqd")
SORT, EXPERTS, WEIGH, COMBINE = Op("sort", "q" * 7), Op("experts", "q" * 9), Op("weigh", "qqqqqq"), Op("combine", "q" * 7)
BEND = Op("bend", "qqqqqqdd")
LATENT, CROSS_ATTEND, WAVES = Op("latent", "q" * 22 + "d"), Op("cross_attend", "q" * 9 + "d"), Op("waves", "qqqq")
PACK, MANY, MANY_WIDE = Op("pack", "qqqq"), Op("many", "qqqqqqq"), Op("many_wide", "qqqqqqq")
COOL, BETWEEN, MASSES = Op("cool", "qqqdd"), Op("indices_between", "qqqqdd"), Op("masses", "qqqqqdd")
LINEAR_BLOCKS = {"int8": Op("linear_int8", "qqqqqqqq"), "int4": Op("linear_int4", "qqqqqqqq")}
EXPERTS_BLOCKS = {"int8": Op("experts_int8", "q" * 10), "int4": Op("experts_int4", "q" * 10)}
EMBEDDING_BLOCKS = {"int8": Op("embedding_int8", "qqqqqqq"), "int4": Op("embedding_int4", "qqqqqqq")}


class Listener(Protocol):
    """What an open recording gives: tensors that stay where they are, and an ear for every call."""

    def aside(self) -> AbstractContextManager[None]: ...
    def fresh(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...
    def add_call(self, op: Op, line: bytes, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> None: ...


class Here(threading.local):
    """What this thread does with the kernels."""

    off: bool = False
    any_rows: bool = False
    recording: Listener | None = None


here = Here()


class Library:
    """A loaded set of kernels. ctypes lets other threads of Python run while one is called, and a call shares nothing with another."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL | 2)  # 2: RTLD_NOW, so that a missing OpenMP is found here
        lib.names.restype = lib.digest.restype = ctypes.c_char_p
        if lib.digest().decode() != digest() or tuple(lib.names().decode().split()) != NAMES:
            raise OSError(str(path))
        self.path, self.run, self.packed = path, lib.run, lib.packed
        self.packed.argtypes, self.packed.restype = (ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
        self.run.argtypes, self.run.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), None


def load(name: str) -> Library | None:
    """The kernels for an instruction set, one of make.FLAGS; None where they are not built, or built from other sources."""
    path = HERE / f"kernels_{name}.so"
    try:
        return Library(path) if path.exists() else None
    except OSError:
        return None


def wanted() -> tuple[str, ...]:
    """The instruction sets of this machine, the fastest first, by what torch has found it can do (ATEN_CPU_CAPABILITY is obeyed)."""
    can = torch.backends.cpu.get_cpu_capability()
    names = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}.get(can, ())
    return (("avx512_vnni",) if "avx512" in names and torch.cpu._is_vnni_supported() else ()) + names


def best() -> Library | None:
    """The kernels for this machine."""
    return next((lib for name in wanted() if (lib := load(name)) is not None), None)


def unfit(folder: Path = HERE) -> str | None:
    """Say which library of a checkout's `folder` a build would mend; None where all is well, and in an installed wheel.

    Of the libraries for this machine each is built from the sources beside it, and where there is a compiler there is at least one.
    """
    if folder.parents[2].name != "src" or not (folder.parents[3] / "hatch_build.py").is_file():
        return None
    paths = [folder / f"kernels_{name}.so" for name in wanted()]
    found = [path for path in paths if path.exists()]
    if paths and not found and compiler() is not None:
        return say("native.missing", file=paths[0].name, command=f"python -m {BUILD}")
    own = digest(folder).encode()
    stale = [path.name for path in found if own not in path.read_bytes()]
    return say("native.stale", files=", ".join(stale), command=f"python -m {BUILD}") if stale else None


lib = best()
if BUILD not in sys.orig_argv and (sentence := unfit()) is not None:
    warnings.warn(sentence, stacklevel=2)


def available() -> bool:
    """Whether the kernels run in this thread."""
    return lib is not None and not here.off


def instructions() -> str | None:
    """The instruction set of the kernels that run, one of make.FLAGS, or None."""
    return lib.path.stem.removeprefix("kernels_") if lib is not None and not here.off else None


@contextmanager
def off() -> Iterator[None]:
    """Everything in here, in this thread, runs through torch."""
    outer, here.off = here.off, True
    try:
        yield
    finally:
        here.off = outer


@contextmanager
def any_rows() -> Iterator[None]:
    """In here, in this thread, the kernels take any number of rows, so that a row has the bits that it has alone."""
    outer, here.any_rows = here.any_rows, True
    try:
        yield
    finally:
        here.any_rows = outer


def most(rows: int) -> float:
    """How many rows the kernels take in this thread: so many, or any number."""
    return math.inf if here.any_rows else rows


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor to write to. While recording its address is fixed for the life of the plan."""
    return torch.empty(shape, dtype=dtype) if here.recording is None else here.recording.fresh(shape, dtype)


def constant() -> AbstractContextManager[None]:
    """What torch makes in here is the same at every step, so a recording need not hear of it: tables of the configuration."""
    return nullcontext() if here.recording is None else here.recording.aside()


threads: Callable[[], int] = torch.get_num_threads


def call(op: Op, half: int, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...], *words: float) -> None:
    """Run one op now, with torch's number of threads; an open recording hears of it. half: 0 for float32, 1 for bfloat16."""
    assert lib is not None
    line = op.pack(op.code + half, op.count, 0, *words)
    if here.recording is not None:
        here.recording.add_call(op, line, reads, writes)
    lib.run(line, 1, threads())
