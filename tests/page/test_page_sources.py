"""The page's sources and its build: nothing drawn by chance, no family's name, no way to run text, nothing from elsewhere."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pellucid.config import MIXERS
from pellucid.families import known

ROOT = Path(__file__).parents[2]
SOURCES = (".ts", ".svelte", ".css", ".html")
# Ways to make markup or code out of text; the framework's own templates are made at build time.
EXECUTION = r"\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:|\son\w+=\""
# The names of XML's vocabularies, which nothing fetches.
NAMES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML", "http://www.w3.org/1999/xlink"}
ERROR_PAGES = "https://svelte.dev/e/"  # in the texts of the framework's own errors; nothing fetches it
Check = Callable[[Path], Iterator[str]]


def sources(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the hand-written files."""
    for file in sorted((root / "web").rglob("*")):
        if file.suffix in SOURCES and "node_modules" not in file.parts:
            yield file.relative_to(root), file.read_text(encoding="utf-8")


def built(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that are served."""
    for file in sorted((root / "src" / "pellucid" / "web").rglob("*")):
        if file.is_file():
            yield file.relative_to(root), file.read_text(encoding="utf-8")


def by_chance(root: Path) -> Iterator[str]:
    """Yield random numbers: every number on the page was executed or counted."""
    yield from (f"{path}: {match[0]}" for path, text in sources(root) for match in re.finditer(r"Math\.random|getRandomValues", text))


def families(root: Path) -> Iterator[str]:
    """Yield names of families: a band is built from paths, axes and ops. A name of a part, such as mamba, is one of paths."""
    names = "|".join(sorted({re.sub(r"[_-]", "[_-]?", name) for name in {*known()} - {*MIXERS}}, key=len, reverse=True))
    for path, text in sources(root):
        bare = re.sub(r"//.*", "", text) if path.name.endswith(".test.ts") else text
        yield from (f"{path}: {match[0]}" for match in re.finditer(rf"\b(?:{names})\b", bare, re.I))


def executing(root: Path) -> Iterator[str]:
    """Yield markup or code made out of text."""
    yield from (f"{path}: {match[0]}" for path, text in sources(root) for match in re.finditer(EXECUTION, text))


def elsewhere(root: Path) -> Iterator[str]:
    """Yield addresses in the build: nothing is fetched but from the page's own server."""
    for path, text in built(root):
        urls = re.findall(r"(?:https?:|wss?:)?//[\w.-]+\.\w+[^\s\"'`)]*", text)
        yield from (f"{path}: {url}" for url in urls if url not in NAMES and not url.startswith(ERROR_PAGES))


def inline(root: Path) -> Iterator[str]:
    """Yield scripts or styles in the markup, which the policy would not run."""
    for path, text in built(root):
        if path.suffix == ".html":
            yield from (f"{path}: {match[0]}" for match in re.finditer(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=", text))


def missing(root: Path) -> Iterator[str]:
    """Yield the parts that a build lacks."""
    names = {path.name for path, _ in built(root)}
    yield from (f"{name} is not built" for name in ("index.html", "page.js", "page.css", "icon.svg") if name not in names)


IN, OUT = "web/src/a.ts", "src/pellucid/web/index.html"
MUTANTS: list[tuple[Check, str, str]] = [
    (by_chance, IN, "const x = Math.random();"),
    (families, IN, 'if (kind === "deepseek_v3") draw();'),
    (families, IN, "// as in GPT2"),
    (executing, IN, "node.innerHTML = text;"),
    (executing, "web/src/A.svelte", "<p>{@html text}</p>"),
    (executing, "web/index.html", '<img onerror="x()">'),
    (elsewhere, OUT, '<link href="https://fonts.example.com/a.css">'),
    (elsewhere, OUT, '<script src="//cdn.example.com/a.js"></script>'),
    (inline, OUT, "<script>run()</script>"),
    (inline, OUT, '<p style="color:red">'),
    (missing, OUT, "<p></p>"),
]


@pytest.mark.parametrize("check", [by_chance, families, executing, elsewhere, inline, missing])
def test_the_page_keeps_its_rules(check: Check) -> None:
    assert list(check(ROOT)) == []


@pytest.mark.parametrize(("check", "name", "text"), MUTANTS)
def test_each_rule_sees_what_breaks_it(check: Check, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(check(tmp_path)) != []
