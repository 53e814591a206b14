"""A page in a browser. Playwright and Chromium are needed by the tests of this folder alone."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import Tab, chromium, open_tab, serve_from_command


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
