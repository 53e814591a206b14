"""Each page of docs/contributing/ is followed from its own text: its files are written into a copy of the project, its commands are run.

A fenced block with a title is a file. A `diff` changes one: each hunk, separated by a line of `@@`, must occur exactly once.
PELLUCID_FULL=1 compiles the kernels as they ship; otherwise they are not optimised, and only those that this machine runs, which takes a
tenth of the time. It also walks every page without one of its files, otherwise one.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pellucid.ops import native
from pellucid.ops.native import library
from pellucid.ops.native.make import compiler
from test_snippets import Block, blocks, commands

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "contributing"
FULL = bool(os.environ.get("PELLUCID_FULL"))
KIND = (*library.wanted(), "avx2")[0]  # of the kernels that this machine runs
LINKED = {"specimens"}  # large, and changed by no page


def copied(root: Path) -> Path:
    """Return a copy of the package and its tests that may be changed."""

    def copy(folder: str, names: list[str]) -> set[str]:
        return {n for n in names if n == "__pycache__" or (Path(folder).name == "pellucid" and n in LINKED)}

    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=copy)
    shutil.copytree(ROOT / "web", root / "web", ignore=lambda _, names: {"node_modules"} & set(names))
    if (ROOT / "web" / "node_modules").exists():
        (root / "web" / "node_modules").symlink_to((ROOT / "web" / "node_modules").resolve())
    kernels = root / "src" / "pellucid" / "ops" / "native"
    own = Path(native.__file__).parent  # the checkout has no kernels where the package under test is an installed one
    for built in own.glob("*.so" if FULL else f"kernels_{KIND}.so"):
        shutil.copy2(built, kernels)
    for name in LINKED:
        (root / "src" / "pellucid" / name).symlink_to(ROOT / "src" / "pellucid" / name)
    for name in ("pyproject.toml", "README.md", "README.zh.md", "recipes", "docs"):
        (root / name).symlink_to(ROOT / name)
    return root


def changed(text: str, diff: str) -> str:
    """Return the text with a diff's hunks applied. ValueError if a hunk's lines do not occur exactly once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if not before or text.count(before) != 1:
            raise ValueError(f"stands {text.count(before)} times:\n{before}")
        text = text.replace(before, after)
    return text


def files(page: str) -> dict[str, list[Block]]:
    """Return the blocks of each file that a page names."""
    by_file: dict[str, list[Block]] = {}
    for block in blocks(page):
        if block.title:
            by_file.setdefault(block.title, []).append(block)
    return by_file


def apply(page: str, root: Path, without: str = "") -> None:
    """Write the page's files, except one, which is removed where the page has it complete and the project has it already."""
    if without in files(page) and not any(block.language == "diff" for block in files(page)[without]):
        (root / without).unlink(missing_ok=True)
    for name, parts in files(page).items():
        for block in parts if name != without else ():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = changed(path.read_text(encoding="utf-8"), block.text) if block.language == "diff" else block.text
            path.write_text(text, encoding="utf-8")


PLAIN = """#!/bin/sh
case "$*" in */kernels_{kind}.*) exec {cxx} "$@" -O0;; esac
exit 1
"""


def failures(page: str, root: Path) -> Iterator[str]:
    """Run a page's commands in a project and return those that fail."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), *sys.path])}
    if not FULL and (cxx := compiler()) is not None:
        (root / "plain").write_text(PLAIN.format(kind=KIND, cxx=shlex.quote(cxx)), encoding="utf-8")
        (root / "plain").chmod(0o755)
        env["CXX"] = str(root / "plain")
    for command in (c for b in blocks(page) if b.language == "sh" for c in commands(b.text)):
        words = shlex.split(command)
        if words[0] == "pytest":
            words = ["python", "-m", *words, "-p", "no:cacheprovider"]
        words = [sys.executable if word == "python" else word for word in words]
        done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, timeout=280)
        if done.returncode != 0:
            yield f"{command}\n{done.stdout[-3000:]}{done.stderr[-2000:]}"


def loaded(root: Path) -> str:
    """Return the kernels that a process in a project loads: without them torch computes, and a page may lack a file unseen."""
    code = "from pellucid.ops.native import library; print(library.lib and library.lib.path.name, library.wanted(), library.unfit())"
    env = os.environ | {"PYTHONPATH": str(root / "src")}
    return subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=False).stdout.strip()


# {page: (files that it touches, a file without which its commands must fail)}
WALKS = {
    "family": (2, "src/pellucid/families/persimmon.py"),
    "attention-kind": (5, "src/pellucid/nn/block.py"),
    "attention-variant": (3, "src/pellucid/nn/attention.py"),
    "endpoint": (4, "src/pellucid/server/app.py"),
    "mask-rule": (6, "src/pellucid/ops/native/attention.py"),
    "op": (5, "src/pellucid/ops/native/rows.h"),
    "view": (5, "src/pellucid/messages/zh.json"),
}


COMPILED = pytest.mark.skipif(compiler() is None, reason="kernels are built on Linux on x86-64")
PAGE = pytest.mark.skipif(not (ROOT / "web" / "node_modules").exists(), reason="web/node_modules is not installed")
NEEDS = {"op": COMPILED, "mask-rule": COMPILED, "view": PAGE}
CASES = [pytest.param(name, marks=NEEDS.get(name, ())) for name in WALKS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick(6)
def test_a_page_is_walked(name: str, tmp_path: Path) -> None:
    page, (touched, _) = (PAGES / f"{name}.md").read_text(encoding="utf-8"), WALKS[name]
    assert len(files(page)) == touched and [f for f in files(page) if f.startswith("tests/")]
    apply(page, copied(tmp_path))
    assert list(failures(page, tmp_path)) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES if FULL else [case for case in CASES if case.values[0] == "mask-rule"])
def test_a_page_that_lacks_a_file_is_seen(name: str, tmp_path: Path) -> None:
    page, (_, without) = (PAGES / f"{name}.md").read_text(encoding="utf-8"), WALKS[name]
    apply(page, copied(tmp_path), without)
    assert next(failures(page, tmp_path), None), f"kernels there: {loaded(tmp_path)}, here: {library.lib and library.lib.path}"


def test_every_page_is_walked() -> None:
    assert {p.stem for p in PAGES.glob("*.md")} == set(WALKS)


@pytest.mark.parametrize("diff", ["-gone\n+x\n", " twice\n+x\n", "+x\n"])
def test_a_hunk_that_does_not_fit_is_refused(diff: str) -> None:
    assert changed("once\ntwice\ntwice\n", " once\n+x\n@@\n-twice\n twice\n") == "once\nx\ntwice\n"
    with pytest.raises(ValueError, match="stands"):
        changed("once\ntwice\ntwice\n", diff)
