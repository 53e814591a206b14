"""The kernels that run are those of the sources beside them; a checkout where they are not says so, and a wheel says nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pellucid
from pellucid.ops.native import library, make

CAN = make.compiler() is not None and bool(library.wanted())
PACKAGE = Path(pellucid.__file__).parent


def checkout(root: Path) -> Path:
    """A checkout at `root` with its own copy of the ops, the rest linked; returns its folder of kernels."""
    package = root / "src" / "pellucid"
    package.mkdir(parents=True)
    (root / "hatch_build.py").touch()
    for path in PACKAGE.iterdir():
        if path.name not in ("ops", "__pycache__"):
            (package / path.name).symlink_to(path)
    shutil.copytree(PACKAGE / "ops", package / "ops", ignore=shutil.ignore_patterns("__pycache__"))
    return package / "ops" / "native"


def edit(folder: Path) -> None:
    with open(folder / "vectors.h", "a") as header:
        header.write("// one more line\n")


def remove(folder: Path) -> None:
    for path in folder.glob("*.so"):
        path.unlink()


def stale(folder: Path) -> None:
    """Of the libraries the fastest alone is of other sources: the next one is loaded, and still it is told."""
    path = folder / f"kernels_{library.wanted()[0]}.so"
    path.write_bytes(path.read_bytes().replace(make.digest().encode(), b"0" * 16))


def test_the_loaded_library_is_that_of_the_sources() -> None:
    """Tests of the kernels are of the sources that are read here."""
    if not CAN:
        return
    assert library.unfit() is None
    assert library.lib is not None and make.digest().encode() in library.lib.path.read_bytes()


@pytest.mark.parametrize(("spoil", "said"), [(edit, "kernels_avx2.so"), (stale, ".so"), (remove, "not built, so")])
def test_an_unfit_library_is_told(spoil: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a copy: nothing is told before it is spoiled, one line with the command after, and nothing without the files of a checkout."""
    if not CAN:
        return
    folder = checkout(tmp_path)
    assert library.unfit(folder) is None
    spoil(folder)
    told = library.unfit(folder)
    assert told is not None and said in told and library.BUILD in told and "\n" not in told
    monkeypatch.setattr(library, "compiler", lambda: None)
    assert (library.unfit(folder) is None) == (spoil is remove)
    (tmp_path / "hatch_build.py").unlink()
    assert library.unfit(folder) is None


def test_a_command_tells_it_on_stderr(tmp_path: Path) -> None:
    if not CAN:
        return
    edit(checkout(tmp_path))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PELLUCID_LANG": "en"}
    done = subprocess.run([sys.executable, "-m", "pellucid", "env", "--json"], env=environment, capture_output=True, text=True, check=True)
    assert "kernels_avx2.so" in done.stderr and done.stderr.count("\n") == 1 and '"kernels": null' in done.stdout


@pytest.mark.parametrize("wrong", [lambda sources=None: make.digest(), lambda sources=None: ""])
def test_the_checks_see_a_digest_of_other_files(wrong: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest that does not read the sources beside the library finds an edited header in order."""
    if not CAN:
        return
    monkeypatch.setattr(library, "digest", wrong)
    with pytest.raises(AssertionError):
        test_an_unfit_library_is_told(edit, "kernels_avx2.so", tmp_path, monkeypatch)
