"""A tab of the tests begins as a new one, also where the browser's page has had a tab before."""

import pytest
from playwright.sync_api import Browser

import browser as tabs
from browser import open_tab
from tiny import swapped

KEPT = "[localStorage.length, sessionStorage.length, document.cookie, window.marked ?? null]"


def leave_traces(browser: Browser, address: str) -> object:
    """Keep something in each place that a page has, and return the page."""
    with open_tab(browser, address, locale="fr") as tab:  # a page that no other test has
        tab.go(view="budget")
        tab.page.evaluate("localStorage.own = 1, sessionStorage.own = 1, document.cookie = 'own=1', window.marked = 1")
        return tab.page


def test_a_page_is_used_again_and_is_as_new(browser: Browser, address: str) -> None:
    before = leave_traces(browser, address)
    with open_tab(browser, address, locale="fr") as tab:
        assert tab.page is before and tab.empty and tab.requests == [] and tab.page.evaluate(KEPT)[2:] == ["", None]
        tab.go(view="budget")
        assert tab.page.evaluate(KEPT) == [0, 1, "", None]  # the token of the server is the page's own
        tab.page.add_init_script("window.marked = 1")
    with open_tab(browser, address, locale="fr") as tab:
        assert tab.page is not before
        tab.go(view="budget")
        assert tab.page.evaluate(KEPT)[3] is None


def test_what_is_left_is_seen(browser: Browser, address: str) -> None:
    with swapped(tabs.Window, "is_as_new", lambda window, tab: True), pytest.raises(AssertionError):
        test_a_page_is_used_again_and_is_as_new(browser, address)
    tabs.FREE.pop(browser)
