"""A page in a browser. Playwright and Chromium are needed by the tests of this folder alone."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser import Tab, chromium, open_tab, serve_from_command
from page_sources import script_of


@pytest.fixture(scope="module")  # its event loop must end before other folders run theirs
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Yield the address of one server for every module: a page changes nothing in it."""
    with serve_from_command() as url:
        yield url


@pytest.fixture
def tab(browser: Browser, address: str) -> Iterator[Tab]:
    with open_tab(browser, address) as opened:
        yield opened


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function that runs requests in node on a page that runs its model."""
    folder = tmp_path_factory.mktemp("live")
    script = script_of("src/live/driver.ts", folder)

    def run(page: Path, runs: list[dict[str, Any]] = [], texts: list[str] = [], timed: int = 0) -> Any:  # noqa: B006
        out, requests = folder / "out.json", json.dumps({"runs": runs, "texts": texts, "timed": timed})
        subprocess.run(["node", str(script), str(page), str(out)], input=requests, text=True, check=True)
        return json.loads(out.read_text())

    return run
