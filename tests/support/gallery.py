"""Exhibits in a browser's tab, and the documents that Python makes of them."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Route

from browser import Tab
from pellucid.documents.exhibit import exhibit_document
from pellucid.exhibits import find
from pellucid.exhibits.exhibit import Opened, run_exhibit
from pellucid.messages import speaking

open_model = Opened()


def show(tab: Tab, name: str, lang: str, **fields: str) -> None:
    """Show an exhibit in the open tab, without loading the page again."""
    if tab.empty:
        tab.go(lang, view="exhibits")
    shown = "zh" if tab.page.evaluate("document.documentElement.lang") == "zh-Hans" else "en"
    if shown != lang:
        tab.page.click("header .settings button[lang]")
    tab.page.evaluate("h => { location.hash = h }", urlencode({"view": "exhibits", "exhibit": name, **fields}))
    ready(tab, name, lang)


def ready(tab: Tab, name: str, lang: str) -> None:
    """Wait until an exhibit with the settings of the address is shown."""
    tab.page.wait_for_selector(f'article[aria-busy="false"][data-shown="{lang} {name}"]')


@cache
def document(name: str, lang: str, prompt: str | None = None, model: str | None = None) -> dict[str, Any]:
    """Return an exhibit's document as Python makes it."""
    settings = {} if prompt is None else {"prompt": prompt}
    with speaking(lang):
        result = run_exhibit(find(name), None if model is None else open_model(model), settings, open_model)
        parsed: dict[str, Any] = json.loads(json.dumps(exhibit_document(result)))
    return parsed


def altered(tab: Tab, change: Callable[[dict[str, Any]], None]) -> None:
    """Let the server's exhibits reach the page changed."""

    def answer(route: Route) -> None:
        reply = route.fetch()
        given = reply.json()
        change(given)
        route.fulfill(response=reply, json=given)

    tab.page.route("**/api/exhibits/*", answer)
