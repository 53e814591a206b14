"""The kernels that run are built from the sources beside them: a checkout with stale ones warns and its tests stop, a wheel is silent."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.ops.native import library, make

SMALLEST = ("none", *library.wanted())[-1]
CAN = make.compiler() is not None and bool(library.wanted())
PACKAGE = Path(pellucid.__file__).parent


def checkout(root: Path) -> Path:
    """Make a checkout at `root` with its own copy of the ops, the rest linked. Return its folder of kernels."""
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
    """Make the fastest library stale only: the next one is loaded, and the warning still comes."""
    path = folder / f"kernels_{library.wanted()[0]}.so"
    path.write_bytes(path.read_bytes().replace(make.digest().encode(), b"0" * 16))


def test_the_loaded_library_is_that_of_the_sources() -> None:
    if not CAN:
        return
    assert library.unfit() is None
    assert library.lib is not None and make.digest().encode() in library.lib.path.read_bytes()


def test_the_committed_wasm_is_that_of_the_sources(tmp_path: Path) -> None:
    """Compiled again it has the same bytes; so another option or a changed line of a kernel is seen."""
    compiler = make.wasm_compiler()
    if compiler is None or make.WASM_COMPILER not in compiler[1]:
        pytest.skip(f"clang {make.WASM_COMPILER} is not installed (Debian 12: clang-16 lld-16 wasi-libc libc++-16-dev-wasm32)")
    made = make.wasm(tmp_path / "kernels.wasm")
    assert made is not None and made.read_bytes() == make.WASM.read_bytes(), "python src/pellucid/ops/native/make.py wasm"


@pytest.mark.parametrize(("spoil", "words"), [(edit, f"kernels_{SMALLEST}.so"), (stale, ".so"), (remove, "not built, so")])
def test_a_stale_library_is_reported(spoil: Callable[[Path], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy a line with the build command follows the unspoiled output; outside a checkout there is none."""
    if not CAN:
        return
    folder = checkout(tmp_path)
    assert library.unfit(folder) is None
    spoil(folder)
    sentence = library.unfit(folder)
    assert sentence is not None and words in sentence and library.BUILD in sentence and "\n" not in sentence
    monkeypatch.setattr(library, "compiler", lambda: None)
    assert (library.unfit(folder) is None) == (spoil is remove)
    (tmp_path / "hatch_build.py").unlink()
    assert library.unfit(folder) is None


def test_a_library_of_an_older_design_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with a digest but without today's symbols is skipped, so that the package imports and says how to build."""
    if not CAN:
        return
    source = tmp_path / "old.cpp"
    source.write_text('extern "C" const char* digest() { return "older"; }\n')
    subprocess.run([str(make.compiler()), "-shared", "-fPIC", str(source), "-o", str(tmp_path / f"kernels_{SMALLEST}.so")], check=True)
    monkeypatch.setattr(library, "HERE", tmp_path)
    assert library.load(SMALLEST) is None
    monkeypatch.setattr(library, "digest", lambda: "older")  # a mutant: the digest alone decides, and the kernels are missing
    with pytest.raises(AttributeError):
        library.load(SMALLEST)


@pytest.mark.parametrize(("can", "opened"), [("AVX2", ["avx2"]), ("AVX512", ["avx2", "avx512"]), ("DEFAULT", [])])
def test_a_library_of_another_processor_is_not_opened(monkeypatch: pytest.MonkeyPatch, can: str, opened: list[str]) -> None:
    """Opening one runs its constructors, whose instructions end the process on a machine that lacks them."""
    if library.lib is None or make.FLAGS is not make.X86:
        return
    names = list[str]()
    monkeypatch.setattr(library, "Library", lambda path: names.append(path.stem.removeprefix("kernels_")))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: can)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    for name in make.FLAGS:
        library.load(name)
    assert names == opened
    monkeypatch.setattr(library, "wanted", lambda: tuple(make.FLAGS))  # a mutant: every library is opened
    library.load("avx512_vnni")
    assert names[-1] == "avx512_vnni"


def test_a_command_warns_on_stderr(tmp_path: Path) -> None:
    if not CAN:
        return
    edit(checkout(tmp_path))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PELLUCID_LANG": "en"}
    done = subprocess.run([sys.executable, "-m", "pellucid", "env", "--json"], env=environment, capture_output=True, text=True, check=True)
    assert f"kernels_{SMALLEST}.so" in done.stderr and done.stderr.count("\n") == 1 and '"kernels": null' in done.stdout


def test_a_test_run_stops_at_stale_kernels(tmp_path: Path) -> None:
    """Under this suite's own conftest any test stops at stale kernels; with fresh ones runs this one."""
    if not CAN:
        return
    folder, here = checkout(tmp_path), Path(__file__).parents[1]
    (tmp_path / "tests").mkdir()
    shutil.copy(here / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_nothing.py").write_text("def test_nothing(): pass\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{here / 'support'}", "PELLUCID_LANG": "en"}
    edit(folder)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "tests")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and library.BUILD in done.stdout + done.stderr and "passed" not in done.stdout


@pytest.mark.parametrize("wrong", [lambda sources=None: make.digest(), lambda sources=None: ""])
def test_the_checks_see_a_digest_of_other_files(wrong: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant is a digest of other files, for which an edited header goes unnoticed."""
    if not CAN:
        return
    monkeypatch.setattr(library, "digest", wrong)
    with pytest.raises(AssertionError):
        test_a_stale_library_is_reported(edit, f"kernels_{SMALLEST}.so", tmp_path, monkeypatch)


def builtin_prefetches(folder: Path) -> list[str]:
    """Return the lines of sources that prefetch by a builtin: GCC removes a call or a lambda that does nothing else."""
    lines = ((path.name, line) for path in sorted(folder.glob("*.h")) for line in path.read_text().splitlines())
    return [f"{name}: {line.strip()}" for name, line in lines if "_prefetch(" in line.partition("//")[0]]


def test_a_prefetch_is_one_that_no_compiler_removes(tmp_path: Path) -> None:
    assert builtin_prefetches(library.HERE) == []
    (tmp_path / "mutant.h").write_text("const auto ahead = [&](i64 i) { __builtin_prefetch(w + i); };\n")
    assert builtin_prefetches(tmp_path) == ["mutant.h: const auto ahead = [&](i64 i) { __builtin_prefetch(w + i); };"]


def test_a_prefetch_in_a_function_of_its_own_is_compiled(tmp_path: Path) -> None:
    """A lambda that only prefetches leaves its instruction in the library; of one by a builtin GCC may leave none."""
    if not CAN or shutil.which("objdump") is None:
        return
    source = tmp_path / "ahead.cpp"
    source.write_text(
        f'#include "{library.HERE / "vectors.h"}"\n'
        "struct Rows { const float* w; long k; void ahead(long r) const { prefetch_l2(w + r * k); } };\n"
        'extern "C" void go(const Rows& rows, long n) { for (long r = 0; r < n; r++) rows.ahead(r); }\n'
    )
    flags = [*make.COMMON, *make.FLAGS[SMALLEST]]
    subprocess.run([str(make.compiler()), *flags, "-shared", str(source), "-o", str(tmp_path / "ahead.so")], check=True)
    instructions = subprocess.run(["objdump", "-d", str(tmp_path / "ahead.so")], capture_output=True, text=True, check=True).stdout
    assert "prefetcht1" in instructions or "prfm" in instructions
