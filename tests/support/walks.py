"""A walk through the page: after every change the page is compared with a fresh load of its new address.

A state is an address (and the settings that a browser keeps); a change is a gesture. Everything drawn is compared: the pixels of each
canvas, the text, data, shape and state of each element, in order. No view is named here: views are the links of the page's own row.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from playwright.sync_api import Browser, Page

from browser import Tab, address_of, next_load, open_tab

# Everything that is drawn, as lines "where: what".
SHOWN = """async () => {
  const lines = [], busy = [];
  const scratch = document.createElement("canvas"), copy = scratch.getContext("2d", { willReadFrequently: true });
  const pixels = (e) => {
    [scratch.width, scratch.height] = [e.width, e.height];
    copy.drawImage(e, 0, 0);
    return copy.getImageData(0, 0, e.width, e.height).data;
  };
  const hash = async (bytes) => {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return [...digest].slice(0, 6).map((b) => b.toString(16).padStart(2, "0")).join("");
  };
  const data = (e) => Object.entries(e.dataset).sort();
  const named = (e) => {
    const all = data(e).map(([k, v]) => `[${k}=${v}]`).join("").slice(0, 80), kind = e.classList[0];
    return e.tagName.toLowerCase() + (e.id ? `#${e.id}` : "") + (kind && !/^s[-v]/.test(kind) ? `.${kind}` : "") + all;
  };
  const place = (e) => {
    const names = [];
    for (let at = e; at && at.id !== "page" && names.length < 4; at = at.parentElement) names.unshift(named(at));
    return names.join(" > ");
  };
  const DRAWN = `d points x y x1 x2 y1 y2 r width height viewBox style title aria-label aria-pressed aria-current aria-expanded
    aria-busy disabled min max class`.split(/\\s+/);
  // A browser writes the numbers of a style in two ways.
  const rounded = (text) => text.replace(/[0-9]*[.]?[0-9]+(e[-+]?[0-9]+)?/g, (n) => Number(n).toFixed(3));
  for (const e of document.querySelectorAll("html, #page *")) {
    const parts = [];
    for (const name of DRAWN)
      if (name === "class" && e.classList.length > 0) parts.push(`class=${[...e.classList].sort().join(" ")}`); // they have no order
      else if (e.hasAttribute(name)) parts.push(`${name}=${name === "style" ? rounded(e.getAttribute(name)) : e.getAttribute(name)}`);
    for (const [name, value] of data(e)) parts.push(`data-${name}=${value}`);
    const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.nodeValue.trim()).filter(Boolean).join(" ");
    if (own) parts.push(own);
    if ("value" in e && e.tagName !== "LI" && e.tagName !== "BUTTON") parts.push(`value=${e.value}`);
    if (e.tagName === "INPUT" && e.type === "checkbox") parts.push(`checked=${e.checked}`);
    const line = lines.push(`${place(e)}: ${parts.join(" | ")}`) - 1;
    if (e.tagName === "CANVAS" && e.width > 0 && e.height > 0)
      busy.push(hash(pixels(e)).then((h) => { lines[line] += ` | pixels=${e.width}x${e.height} ${h}`; }));
  }
  await Promise.all(busy);
  return lines;
}"""

Gesture = Callable[["Walk"], bool]  # False: there is nothing here to do it with


@dataclass
class Walk:
    """A page that is changed by gestures, and a second one that is loaded afresh."""

    tab: Tab
    fresh: Page
    compared: int = 0

    @property
    def page(self) -> Page:
        return self.tab.page

    @property
    def place(self) -> dict[str, str]:
        """Return the fields of the page's address, with what it has not written yet."""
        return dict(parse_qsl(address_of(self.page).removeprefix("#"), keep_blank_values=True))

    def open(self, lang: str = "en", **place: object) -> None:
        """Open a place by its link."""
        self.page.bring_to_front()
        self.tab.go(lang, **place)
        self.page.evaluate("__calm()")

    def calm(self) -> None:
        """Take the pointer and the focus from the page, and wait until it is idle."""
        self.page.bring_to_front()  # a page behind another gets one frame a second
        self.page.mouse.move(0, 0)
        self.page.evaluate("document.activeElement?.blur(), __calm()")

    def seen(self) -> list[str]:
        """Return the lines of what the page shows, after gestures."""
        self.calm()
        lines: list[str] = self.page.evaluate(SHOWN)
        return lines

    def loaded(self) -> list[str]:
        """Return the lines of what a fresh load of the page's present address shows."""
        token = self.tab.address.split("#")[1]
        address = self.page.evaluate("location.href")
        fragment = address.partition("#")[2]
        self.fresh.bring_to_front()
        self.fresh.goto(f"{next_load(address.partition('#')[0])}#{token}&{fragment}")
        self.fresh.wait_for_selector("main")
        self.fresh.evaluate("__calm()")
        lines: list[str] = self.fresh.evaluate(SHOWN)
        return lines

    def differences(self) -> list[str]:
        """Return the lines by which the page and a fresh load of its address differ."""
        self.compared += 1
        now, then = self.seen(), self.loaded()
        if now == then:
            return []
        lines = difflib.unified_diff(then, now, "a fresh load", "the page", lineterm="", n=0)
        return [line for line in lines if not line.startswith(("@@", "---", "+++"))]

    def views(self) -> list[str]:
        """Return the views that the page offers."""
        names: list[str] = self.page.eval_on_selector_all(
            "main nav a", "all => all.map(a => new URLSearchParams(a.hash.slice(1)).get('view'))"
        )
        return names


@contextmanager
def walking(browser: Browser, address: str, *scripts: str, **how: Any) -> Iterator[Walk]:
    """Open a page and its fresh twin in one browser; scripts run in the first before the page does.

    The window is higher than any page: a card is drawn once it comes into view, and the two need not be scrolled alike.
    """
    with open_tab(browser, address, refusals=(400, 404), **{"viewport": {"width": 1440, "height": 5000}, **how}) as tab:
        for script in scripts:
            tab.page.add_init_script(script)
        yield Walk(tab, tab.page.context.new_page())


# Gestures


def view(name: str) -> Gesture:
    """Follow the link of a view."""

    def do(walk: Walk) -> bool:
        link = walk.page.locator(f"main nav a[href$='view={name}']")
        if link.count() == 0:
            return False
        link.click()
        return True

    return do


def prompt(text: str) -> Gesture:
    """Type another prompt."""

    def do(walk: Walk) -> bool:
        walk.tab.enter_prompt(text)
        return True

    return do


def model(name: str) -> Gesture:
    """Choose another model."""

    def do(walk: Walk) -> bool:
        walk.page.select_option("#model", name)
        return True

    return do


def press(selector: str, nth: int = 0) -> Gesture:
    """Click a control."""

    def do(walk: Walk) -> bool:
        controls = walk.page.locator(selector)
        if controls.count() <= nth:
            return False
        controls.nth(nth).click()
        return True

    return do


def theme(walk: Walk) -> bool:
    """Change to the other colours."""
    walk.page.locator("header .settings button").last.click()
    return True


def language(walk: Walk) -> bool:
    """Change to the other language."""
    walk.page.locator("header .settings button[lang]").click()
    return True


def back(walk: Walk) -> bool:
    """Go to another view, and back by the browser's history."""
    walk.page.locator("main nav a:not([aria-current])").first.click()
    walk.calm()
    walk.page.go_back()
    return True


def address(**change: object) -> Gesture:
    """Go to another address in the same page, as a link within it or a step back does; None: the field is left out."""

    def do(walk: Walk) -> bool:
        place = {k: v for k, v in {**walk.place, **change}.items() if v is not None}
        walk.page.evaluate("h => { location.hash = h }", urlencode({k: str(v) for k, v in place.items()}))
        return True

    return do


def route(walk: Walk, gestures: Sequence[tuple[str, Gesture]]) -> list[str]:
    """Make one gesture after the other. Returns every difference, with the gesture before it."""
    differences = []
    for name, gesture in gestures:
        walk.calm()
        if gesture(walk):
            differences += [f"after {name} at {walk.page.evaluate('location.hash')}: {line}" for line in walk.differences()[:6]]
    return differences
