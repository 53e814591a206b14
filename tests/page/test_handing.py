"""The page's address reaches the browser without its token in a list of commands, which other users of the machine can read."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser import open_tab
from pellucid.server.browser import leading_to


@contextmanager
def handed(folder: Path, **env: str) -> Iterator[tuple[str, str]]:
    """Run `pellucid open` with a script as the desktop's browser. Yields the printed address and the script's arguments."""
    log = folder / "log"
    scripts = {"xdg-open": f'printf "%s" "$*" > {log}.new\nmv {log}.new {log}\n', "xdg-settings": "exit 1\n"}
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        (folder / name).chmod(0o755)
    own = {k: v for k, v in os.environ.items() if k not in ("BROWSER", "WSL_DISTRO_NAME")}
    own |= {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "DISPLAY": ":9", "HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([sys.executable, "-m", "pellucid", "open"], env=own | env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        for _ in range(1000):
            if log.exists():
                break
            time.sleep(0.02)
        yield address, log.read_text(encoding="utf-8")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.mark.skipif(sys.platform != "linux", reason="where commands are listed with what they were given")
def test_the_token_is_in_no_command(browser: Browser, tmp_path: Path) -> None:
    with handed(tmp_path) as (address, given):
        base, _, token = address.partition("#token=")
        assert token and token not in given and base not in given
        file = Path(given.removeprefix("file://"))
        assert file.parent == tmp_path and stat.S_IMODE(file.stat().st_mode) == 0o600
        with open_tab(browser, address) as tab:
            tab.page.goto(given)
            tab.problems.remove(given)  # a file is no request to the server
            tab.page.wait_for_selector("main nav")  # it went on, and the server took the token
            assert tab.page.url.startswith(base) and "token" not in tab.page.url
    assert not file.exists()


def test_a_browser_that_was_named_gets_the_address(tmp_path: Path) -> None:
    with handed(tmp_path, BROWSER=str(tmp_path / "xdg-open")) as (address, given):
        assert given == address


def test_a_home_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = leading_to("http://127.0.0.1:1/#token=x")
    assert file is not None and file.parent == tmp_path

    def full(*given: Any) -> Any:
        raise OSError

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert leading_to("http://127.0.0.1:1/#token=x") is None
