"""A kernel's words have the order of its struct: the compiler checks FIELDS against it, and Python passes every word by name."""

import ast
import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from covering import FULL
from pellucid.ops.native import library, make

COMPILER = make.compiler()
needs_compiler = pytest.mark.skipif(COMPILER is None or not library.wanted(), reason="the kernels are not for this machine")
full = pytest.mark.skipif(not FULL, reason="half of the orders are compiled: PELLUCID_FULL=1 does all")
STORE = "FIELDS(x, pool, table, positions, rows, width, size, pages)"
WAVES = "FIELDS(positions, y, rows, width, skip, over)"
SIZES = "i64 rows, width, size, pages;"


def compiled(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    """Compile the kernels of a folder for the smallest instruction set."""
    assert COMPILER is not None
    command = [
        COMPILER,
        *(f for f in make.COMMON if f != "-O3"),
        *next(iter(make.FLAGS.values())),
        '-DDIGEST="x"',
        *how,
        str(folder / "kernels.cpp"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of the kernels' sources."""
    folder = tmp_path / "native"
    shutil.copytree(make.HERE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.py"))
    return folder


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@needs_compiler
@pytest.mark.parametrize(
    ("header", "old", "new"),
    [
        pytest.param("rows.h", WAVES, "FIELDS(positions, y, width, rows, skip, over)", id="FIELDS swapped"),
        pytest.param("rows.h", WAVES, "FIELDS(positions, y, rows, skip, over)", id="FIELDS without one"),
        pytest.param("rows.h", WAVES, "FIELDS(positions, y, rows, rows, width, skip, over)", id="FIELDS twice", marks=full),
        pytest.param("attend.h", SIZES, "i64 rows, size, width, pages;", id="struct swapped"),
        pytest.param("attend.h", SIZES, "i64 rows, width, size, pages, more;", id="struct with one more"),
        pytest.param("attend.h", SIZES, "i64 rows, width, size;", id="struct with one less", marks=full),
        pytest.param("attend.h", SIZES, "i64 rows, width, pages; int size;", id="4 bytes"),
    ],
)
@pytest.mark.quick(7)
def test_a_struct_out_of_order_does_not_compile(header: str, old: str, new: str, sources: Path) -> None:
    replaced(sources / header, old, new)
    done = compiled(sources, "-fsyntax-only")
    assert done.returncode != 0 and re.search("FIELDS must name every field|was not declared|a field is an i64", done.stderr)


@needs_compiler
def test_the_sources_as_they_are_compile(sources: Path) -> None:
    """The unchanged sources compile, so that the test above fails for its own reason."""
    done = compiled(sources, "-fsyntax-only")
    assert done.returncode == 0, done.stderr


def calls() -> Iterator[tuple[str, set[str]]]:
    """Yield every `call("kernel", ..., word=...)` in the package, and every planned one, by the kernels that it may mean."""
    for path in make.HERE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("call", "planned"):
                words = {k.arg or "**" for k in node.keywords}
                yield from ((name, words) for name in kernels_of(node.args[0]))


def kernels_of(name: ast.expr) -> list[str]:
    """Return the kernels that a call's first argument may name."""
    if isinstance(name, ast.JoinedStr):
        return [f"{name.values[0].value}{form}" for form in ("int8", "int4")]  # type: ignore[attr-defined]
    if isinstance(name, ast.IfExp):
        return [*kernels_of(name.body), *kernels_of(name.orelse)]
    return [name.value] if isinstance(name, ast.Constant) else ["linear", "linear_wide", "many", "many_wide"]


def unlike(ops: dict[str, library.Op]) -> dict[str, Any]:
    """Return the calls whose words are not those of their kernel, and the kernels that nothing calls."""
    packed = list(calls())
    wrong = {name: words for name, words in packed if name not in ops or words != set(ops[name].fields)}
    return wrong | dict.fromkeys(ops.keys() - {name for name, _ in packed}, "is not called")


def test_every_call_names_the_words_of_its_kernel() -> None:
    if library.lib is not None:
        assert unlike(library.lib.ops) == {}


def test_a_call_with_other_words_is_seen() -> None:
    """Seen are a field that the struct renames, loses or gains, and a kernel that nothing calls."""
    if library.lib is None:
        return
    add = library.lib.ops["add"]
    for fields in (("x", "y", "z", "count"), ("x", "y", "z"), ("x", "y", "z", "n", "m")):
        assert unlike(library.lib.ops | {"add": library.Op("add", add.code, "q" * len(fields), fields)}).keys() == {"add"}
    assert unlike(library.lib.ops | {"double": library.Op("double", 0, "q", ["x"])}) == {"double": "is not called"}


def test_words_go_to_their_fields_in_any_order() -> None:
    op = library.Op("norm", 4, "qqd", ["x", "rows", "eps"])
    assert op.line(1, {"eps": 0.5, "x": 7, "rows": 2}) == op.line(1, {"x": 7, "rows": 2, "eps": 0.5})
    assert op.line(1, {"x": 7, "rows": 2, "eps": 0.5}) != op.line(1, {"x": 2, "rows": 7, "eps": 0.5})
    for words in ({"x": 7, "rows": 2}, {"x": 7, "rows": 2, "eps": 0.5, "n": 1}, {"x": 7, "rows": 2, "epsilon": 0.5}):
        with pytest.raises(TypeError, match=r"kernel norm\(x, rows, eps\) called: x, rows"):
            op.line(0, words)


@pytest.mark.parametrize("line", ["add qqq x, y, z, n", "add qqqqq x, y, z, n", "add qqqq x, y, y, n"])
def test_a_description_that_does_not_agree_is_refused(line: str) -> None:
    """A library whose description differs is not used."""
    assert library.described("add qqqq x, y, z, n")["add"].fields == ("x", "y", "z", "n")
    with pytest.raises(OSError, match="kernel add: "):
        library.described(line)


TWICE = """
// ---- twice: x + x
template <class T>
struct Twice {
  const T* x;
  T* y;
  i64 n;
  FIELDS(x, y, n)
};
template <class T>
static i64 twice_pieces(const Twice<T>& a) { return parts(a.n, GRAIN); }
template <class T>
static void twice(const Twice<T>& a, Work& work) {
  for (i64 p; (p = work.next()) >= 0;)
    for (i64 i = p * GRAIN; i < a.n && i < (p + 1) * GRAIN; i++) put(a.y + i, 2 * get(a.x + i));
}
"""


@needs_compiler
def test_a_new_kernel_is_a_struct_two_functions_and_a_line(sources: Path) -> None:
    """A kernel written into a copy is compiled, described and called by its name."""
    with open(sources / "rows.h", "a", encoding="utf-8") as header:
        header.write(TWICE)
    replaced(sources / "kernels.cpp", "  BOTH(linear) BOTH(embedding)", "  BOTH(twice) BOTH(linear) BOTH(embedding)")
    done = compiled(sources, "-shared", "-o", str(sources / "twice.so"))
    assert done.returncode == 0, done.stderr
    lib = ctypes.CDLL(str(sources / "twice.so"))
    lib.kernels.restype = ctypes.c_char_p
    lib.run.argtypes, lib.run.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), None
    op = library.described(lib.kernels().decode())["twice"]
    x, y = torch.arange(3000.0).bfloat16(), torch.zeros(3000).bfloat16()
    lib.run(op.line(1, {"n": 3000, "y": y.data_ptr(), "x": x.data_ptr()}), 1, 2)
    assert torch.equal(y, x * 2)
