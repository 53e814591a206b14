"""The docs' site: generated pages hold all of their source, and the site builds strictly without a network."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pellucid
from kinds import KINDS
from pellucid.commands import app, main
from pellucid.families import known

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert spec is not None and spec.loader is not None
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)
PAGES = generate.pages()


def test_every_public_name_has_a_page() -> None:
    """A public name's page has its docstring's first sentence and each of its parameters."""
    for name in pellucid.__all__:
        page = PAGES[f"python/{name}.md"]
        sentence = re.sub(r"\s+", " ", (getattr(pellucid, name).__doc__ or "").strip().partition("\n\n")[0])
        assert sentence and sentence in page
    assert "only: str | Iterable[str] = '*'" in PAGES["python/watch.md"] and "- `only`: " in PAGES["python/watch.md"]
    assert "## generate" in PAGES["python/Model.md"] and "\n## _" not in PAGES["python/Model.md"]


def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in app.COMMANDS:
        assert main([name, "--help", "--lang", "en"]) == 0
        own = capsys.readouterr().out.partition("\n\nwith every command")[0]
        assert f"## {name}\n\n```text\n{own}\n```" in PAGES["cli.md"]


def test_every_model_type_has_its_row() -> None:
    for name in known():
        row = next(line for line in PAGES["types.md"].splitlines() if line.startswith(f"| `{name}` |"))
        assert all(case in row for case in (KINDS[name].quirks if name in KINDS else ("of its own",))) and len(row) > 60


def test_every_document_has_its_fields() -> None:
    for stem in (*generate.COMMAND_SCHEMAS, "api"):
        schema = json.loads((generate.SCHEMAS / f"{stem}.json").read_text(encoding="utf-8"))
        page = PAGES["http.md" if stem == "api" else "json.md"]
        for name, shape in schema["$defs"].items() if "$defs" in schema else ():
            heading = f"## {name}\n" if stem == "api" else f"### {stem} {name}\n"
            part = page.partition(heading)[2].partition("\n#")[0]
            assert part and all(f"`{field}`" in part for field in shape.get("properties", ()))


def test_a_new_field_is_shown() -> None:
    shape = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", None]}}, "required": ["a"]}
    assert generate.fields(shape).splitlines()[2:] == ["| `a` | integer |", '| `b` (optional) | `"x"` or `null` |']


def built(root: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    """Build a project's site into a folder, behind a proxy that refuses every connection."""
    env = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "mkdocs.yml"), "-d", str(out)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    done = built(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert fetched == [], page


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_a_dead_link_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md)\n", encoding="utf-8")
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("hooks", "nav", " ", "theme", "plugins", "markdown_ext", "exclude"))]
    (tmp_path / "mkdocs.yml").write_text("\n".join([k for k in kept if k != "validation:"]), encoding="utf-8")
    assert built(tmp_path, tmp_path / "site").returncode == 1
