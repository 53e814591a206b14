"""docs/serve.md: its server starts, and every command and line of Python on the page runs against it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pellucid
from pellucid.commands import main
from pellucid.server.openai.jobs import CHAT, COMPLETION
from pellucid.server.openai.operation import Operation
from pellucid.server.openai.routes import OpenAiApi
from pellucid.server.openai.serving import SERVE_LIMITS
from test_python_page import untrue
from test_snippets import blocks, commands

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Start the page's first command on a free port. Yields the address."""
    folder = tmp_path / "path" / "to" / "a" / "huggingface" / "folder"
    pellucid.load("pellucid/capitals").save(folder)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{# tools, <tool_call> #}"
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    first = next(c for block in blocks(PAGE) for c in commands(block.text) if c.startswith("pellucid serve"))
    words = first.replace("8000", "0").split()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PELLUCID_LANG": "en"}
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield line.partition("/v1")[0]
    finally:
        process.kill()
        process.communicate()


def page_faults(text: str, address: str) -> list[str]:
    """Run a page's clients against a server. Returns those that fail or give another value."""
    out, names = list[str](), dict[str, object]()
    for block in blocks(text.replace("http://127.0.0.1:8000", address)):
        if block.language == "python":
            out += untrue(f"```python\n{block.text}```\n", names)
        for command in commands(block.text) if block.language == "sh" else ():
            if command.startswith("curl"):
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
                out += [] if done.returncode == 0 and "model" in done.stdout and "error" not in done.stdout else [command]
            if command.startswith("pellucid verify"):
                words = command.replace("path/to/a/huggingface/folder", "pellucid/capitals").split()[1:]
                out += [] if main(words) == 0 else [command]
    return out


def test_clients(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert page_faults(PAGE, address) == []
    assert page_faults(PAGE.replace('"prompt": "The capital of France', '"prompt": [], "x": "'), address)
    assert page_faults(PAGE.replace("' Tokyo'", "' Kyoto'"), address)


def test_the_page_has_every_route_and_field() -> None:
    paths = {route.path.replace("{name:path}", "NAME").replace(":path}", "}") for route in OpenAiApi(Operation("0"), SERVE_LIMITS).routes()}
    assert [path for path in paths if path not in PAGE] == []
    named = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert (COMPLETION | CHAT) - named - {"model", "tool_choice", "stream_options"} == set()
