"""deploy/: the commands of the Dockerfile, the compose file and the systemd unit are ones that `pellucid serve` takes."""

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

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
