"""A page in a browser. Playwright and Chromium are needed by the tests of this folder alone."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from visits import Visit, chromium, opened, visiting


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with opened() as found:
        yield found


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as found:
        yield found
