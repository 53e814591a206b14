"""Every command and every line of Python in the docs and the READMEs runs; docs/python.md has a test of its own."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import pellucid
from pellucid.commands import main
from pellucid.exhibits import CHAPTERS, find
from pellucid.training import corpus
from rank_groups import RankGroups, rank_groups
from test_python_page import untrue
from training import corpus_of

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "README.zh.md", "CONTRIBUTING.md", *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"docs/python.md": "tests/api/test_python_page.py", "docs/serve.md": "tests/serve/test_serve_page.py"}
ELSEWHERE |= {"README.zh.md": "tests/docs/test_snippets.py"}
ELSEWHERE |= {page: "tests/docs/test_walks.py" for page in PAGES if page.startswith("docs/contributing/")}
RUN = {"python", "sh", "toml"}
FULL = bool(os.environ.get("PELLUCID_FULL"))
READ = {"", "text", "js", "diff", "cpp", "json", "svelte", "ts"}  # pictures, and what other tests apply or compare


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its file's name, and its text."""

    language: str
    title: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """Return the fenced blocks of a page."""
    for fence in re.finditer(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', page, re.M | re.S):
        yield Block(fence[1], fence[2] or "", fence[3])


def commands(text: str) -> list[str]:
    """Return the commands of a shell block, without comments."""
    lines = [re.sub(r"(^|  +)#.*", "", line).strip() for line in text.splitlines()]
    return [part.strip() for line in lines if line for part in line.split("&&")]


def steps() -> set[str]:
    """Return the commands that CI runs and those that make a target or an environment."""
    ran = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    of_ci = {" ".join(shlex.split(line)) for line in re.findall(r"^ *(?:run|check|beside) ([^#\n]+)", ran, re.M)}
    own = {"pytest tests/ops"}  # a part of what CI runs
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    return {command.replace("pip install -q", "pip install") for command in of_ci} | own | {f"make {target}" for target in targets}


def short(exhibits: Sequence[str]) -> list[str]:
    """Return the exhibits that train nothing, which takes seconds, before those that do."""
    return sorted(exhibits, key=lambda name: any(c.name == "steps" for c in find(name).controls))


# Needs a network; tests/laws/test_claims.py holds its place in the READMEs.
OUTSIDE = {"pip install torch --index-url https://download.pytorch.org/whl/cpu"}


def unrun(command: str, groups: RankGroups | None = None) -> str | None:
    """Run a command of the package and return its fault; None if it succeeds or CI runs it. groups: run it on ranks without torchrun."""
    words = shlex.split(command)
    if words[:2] in (["pellucid", "open"], ["pellucid", "serve"]):
        words, ready = (words, "#token=") if words[1] == "open" else ([*words, "--port", "0"], "/v1")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BROWSER": "false"}
        process = subprocess.Popen([sys.executable, "-m", *words], env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            return None if ready in process.stdout.readline() else f"{command}: no address"
        finally:
            process.kill()
            process.communicate()
    if groups is not None:
        assert words[:5] == ["torchrun", "--standalone", "--nproc-per-node", "2", "-m"] and words[5] == "pellucid"
        return groups("command", 2, Path.cwd(), words[6:]) or None
    if words[0] == "torchrun":
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *words[1:]], env=env, capture_output=True, text=True, check=False
        )
        return None if done.returncode == 0 else f"{command}: {done.stderr}"
    if words[0] == "pellucid":
        small = patch.object(corpus, "CORPORA", Path("corpora").resolve()) if words[1] == "train" else nullcontext()
        first = {} if FULL else {chapter: short(names)[:1] for chapter, names in CHAPTERS.items()}  # tests/exhibits runs all of them
        with small, patch.dict(CHAPTERS, first):
            code = main(words[1:])
        return None if code == 0 else f"{command}: exit code {code}"
    return None if " ".join(words) in steps() | OUTSIDE else f"{command}: nothing runs it"


def untold(page: str) -> list[str]:
    """Run a page's blocks in order and return those that fail or give another value.

    Its first command of several ranks runs under torchrun, the next ones on forked ranks, which need not import everything again.
    """
    with ExitStack() as opened:
        return faults(page, opened)


def faults(page: str, opened: ExitStack) -> list[str]:
    """Return the blocks of a page that fail or give another value. opened: what is closed after the last one."""
    out: list[str] = []
    names: dict[str, Any] = {}
    groups: list[RankGroups | None] = []
    for block in blocks(page):
        if block.language not in RUN | READ:
            out.append(f"{block.language}: what is it?")
        elif block.title and block.language in RUN:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            out += untrue(f"```python\n{block.text}```\n", names)
        elif block.language == "sh":
            for command in commands(block.text):
                if of_ranks := command.startswith("torchrun") and sys.platform == "linux":
                    groups.append(opened.enter_context(rank_groups()) if len(groups) == 1 else groups[-1] if groups else None)
                out += [wrong] if (wrong := unrun(command, groups[-1] if of_ranks else None)) else []
    return out


@pytest.fixture
def reader_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder that the docs assume, with a checkpoint, and a corpus of two countries in place of the one that ships."""
    monkeypatch.chdir(tmp_path)
    corpus_of(tmp_path / "corpora" / "capitals", "France", "Japan")
    pellucid.load("pellucid/capitals").save(tmp_path / "path" / "to" / "a" / "huggingface" / "folder")
    return tmp_path


def programs(page: str) -> list[tuple[str, str, list[str]]]:
    """Return the blocks of a page that run, without their comments."""
    return [(block.language, block.title, commands(block.text)) for block in blocks(page) if block.language in RUN]


def test_both_readmes_run_the_same() -> None:
    """README.md runs, and README.zh.md has its commands and lines."""
    own, other = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    assert programs(own) == programs(other) and len(programs(own)) > 3
    assert programs(other.replace("pellucid exhibit", "pellucid exhibits")) != programs(own)


def test_what_the_readme_says_runs(reader_folder: Path) -> None:
    assert untold((ROOT / "README.md").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ELSEWHERE and p != "README.md"])
@pytest.mark.quick(4)
def test_what_a_page_says_runs(page: str, reader_folder: Path) -> None:
    assert untold((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "page",
    [
        "```sh\npellucid explian hello\n```\n",
        "```sh\nmake nothing\n```\n",
        "```sh\ncurl example.org\n```\n",
        "```sh\npellucid env && pip install .[everything]\n```\n",
        "```python\n1 + 1  # -> 3\n```\n",
        "```rust\nfn main() {}\n```\n",
    ],
)
@pytest.mark.quick(4)
def test_a_page_that_is_wrong_is_seen(page: str, reader_folder: Path) -> None:
    assert len(untold(page)) == 1


def test_tests_elsewhere_exist() -> None:
    assert all((ROOT / page).is_file() and (ROOT / test).is_file() for page, test in ELSEWHERE.items())
