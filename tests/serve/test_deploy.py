"""deploy/: the commands of its files are ones that `pellucid serve` takes, and nginx spreads requests as its configuration says."""

import configparser
import json
import re
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai_served import long_folder, on_a_socket
from pellucid.api.model import load
from pellucid.commands import main

DEPLOY = Path(__file__).parents[2] / "deploy"


def commands() -> dict[str, list[str]]:
    """Return the words after `pellucid` in each file."""
    docker = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r'^ENTRYPOINT \["pellucid"\]$', docker, re.M)
    (command,) = re.findall(r"^CMD (\[.*\])$", docker, re.M)
    compose: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    unit = configparser.RawConfigParser(strict=False)
    unit.read(DEPLOY / "pellucid.service", encoding="utf-8")
    return {
        "Dockerfile": json.loads(command), "compose.yaml": compose["services"]["pellucid"]["command"],
        "pellucid.service": shlex.split(unit["Service"]["ExecStart"])[1:],
    }  # fmt: skip


@pytest.mark.parametrize("file", ["Dockerfile", "compose.yaml", "pellucid.service"])
def test_options_are_those_of_serve(file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command gets as far as its model, which is not here."""
    monkeypatch.setenv("PELLUCID_API_KEY", "sk-deploy")
    words = [w for w in commands()[file] if "CREDENTIALS_DIRECTORY" not in w and w != "--api-key-file"]
    words = ["pellucid/none" if ("model" in w and "/" in w) or w.startswith("pellucid/") else w for w in words]
    port = words.index("--port") if "--port" in words else None
    words = [*words, "--port", "0"] if port is None else [*words[: port + 1], "0", *words[port + 2 :]]
    assert main([*words, "--lang", "en"]) == 2
    assert "pellucid/none" in capsys.readouterr().err
    assert main([*words, "--no-such-option"]) == 2


def test_files_that_are_copied_exist() -> None:
    for line in (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            assert all((DEPLOY.parent / name).exists() for name in line.split()[1:-1]), line


@contextmanager
def nginx(folder: Path, ports: list[int]) -> Iterator[str]:
    """Run nginx by deploy/nginx.conf, on a free port and before these ones. Yields its address."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        front = own.getsockname()[1]
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    for there, here in (("listen 8000", f"listen 127.0.0.1:{front}"), (":8001", f":{ports[0]}"), (":8002", f":{ports[1]}")):
        assert there in text
        text = text.replace(there, here)
    text = text.replace("worker_processes auto", "worker_processes 1").replace("4096;", "256;")
    temporary = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(text.replace("http {", f"http {{\n    access_log off;\n{temporary}"), encoding="utf-8")
    words = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", f"daemon off; pid {folder}/pid; error_log {folder}/log;"]
    process = subprocess.Popen(["nginx", "-e", str(folder / "log"), *words])
    try:
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{front}/health", timeout=30)
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        yield f"http://127.0.0.1:{front}"
    finally:
        process.terminate()
        process.wait()


def cached_tokens(address: str, prompt: str) -> int:
    """Complete a prompt. Returns how many of its tokens the server had read before."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return int(json.load(reply)["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
def test_nginx_spreads_requests_by_their_beginning(tmp_path: Path) -> None:
    """Prompts that begin alike meet one server, those that do not meet both; where one ends, the other answers."""
    model = load(long_folder(tmp_path / "long"))
    beginnings = [f"{i} begins. " * 130 for i in range(20)]
    with on_a_socket(model, tokens=65_536, names=frozenset({"pellucid"})) as (first, ours), ExitStack() as opened:
        second, theirs = opened.enter_context(on_a_socket(model, tokens=65_536, names=frozenset({"pellucid"})))
        with nginx(tmp_path, [int(a.rpartition(":")[2]) for a in (first, second)]) as address:
            assert [cached_tokens(address, text) for text in beginnings] == [0] * len(beginnings)
            assert all(cached_tokens(address, f"{text}{i}") > 900 for i, text in enumerate(beginnings))
            threads = [s.thread for models in (ours, theirs) for s in models.values()]
            assert all(thread is not None and thread.engine.count > 1 for thread in threads)
            opened.close()
            for text in beginnings[:6]:
                cached_tokens(address, text)
