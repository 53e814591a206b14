"""Kernels keep to the memory that they are given: between pages without access, and under GCC's sanitizers (PELLUCID_FULL=1).

`python -m campaigns.sanitizers` does it for every instruction set of the machine, with the tests of the ops.
"""

import shutil
from pathlib import Path

import pytest
import torch

from campaigns import sanitizers
from covering import FULL
from emulated import installed
from fenced import Fenced
from pellucid.ops import native
from pellucid.ops.native import library, make, twins
from test_native import rand
from tiny import swapped

kernels = pytest.mark.skipif(not native.available() or sanitizers.missing() is not None, reason="no kernels of a machine with Linux")
full = pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 compiles the kernels under sanitizers")


@kernels
def test_no_kernel_leaves_what_it_is_given() -> None:
    """Every kernel runs on odd shapes at the ends of memory. The mutant of each, a call with one row more, ends its process."""
    assert library.lib is not None
    ended = sanitizers.judged(library.lib.path, [], quick=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "never called: none" in ended.stdout and "too many and live: none" in ended.stdout


@kernels
def test_a_result_that_goes_by_its_place_is_seen() -> None:
    """The mutants write other bits at the start of memory, and get a pointer of which their op has said nothing."""
    assert library.lib is not None
    lib, x = Fenced(library.lib.path), rand(3, 7, dtype=torch.float32)
    right = lib.result
    with torch.no_grad(), installed(lib):
        native.add(x, x)
        assert lib.calls == 1
        other = swapped(lib, "result", lambda *call: right(*call) if call[-1] else [b"other"])
        with other, pytest.raises(AssertionError, match="add: other bits at another place"):
            native.add(x, x)
        real = twins.call
        silent = swapped(twins, "call", lambda name, half, reads, writes, **words: real(name, half, (), writes, **words))
        with silent, pytest.raises(AssertionError, match="add's x is neither read nor written"):
            native.add(x, x)


MUTANTS = {
    "a vector that is not whole": ("vectors.h", "if (n >= LANES) return load(p);", "if (n >= LANES - 1) return load(p);", "SEGV"),
    "half a scratch": (
        "walk.h",
        "std::aligned_alloc(line, buffer.size);",
        "std::aligned_alloc(line, buffer.size / 2);",
        "heap-buffer-overflow",
    ),
    "a shift by a word": ("vectors.h", "(bits >> 16 & 1)) >> 16);", "(bits >> 16 & 1)) >> 32);", "shift exponent 32"),
}


@full
@kernels
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_seen(mutant: str, tmp_path: Path) -> None:
    header, old, new, message = MUTANTS[mutant]
    folder = tmp_path / "native"
    shutil.copytree(make.HERE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    text = (folder / header).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / header).write_text(text.replace(old, new), encoding="utf-8")
    ended = sanitizers.judged(sanitizers.build("avx2", tmp_path, folder), [])
    assert ended.returncode != 0 and message in ended.stderr, ended.stderr[-2000:]


@full
@kernels
def test_the_kernels_have_no_fault(tmp_path: Path) -> None:
    """AVX2's kernels on odd shapes, and in one file of tests. The campaign runs every set and all files."""
    ended = sanitizers.judged(sanitizers.build("avx2", tmp_path), [str(Path(__file__).with_name("test_native_shapes.py"))])
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "compiler", lambda: None)
    sentence = sanitizers.missing()
    assert sentence is not None and "\n" not in sentence and ("g++" in sentence)
