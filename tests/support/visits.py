"""The page in a real Chromium, served by `pellucid open` in a process of its own; what it does that it should not is a fault."""

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from pellucid.runs.limits import LIMITS
from pellucid.server.app import build
from pellucid.server.listen import HOST, taken
from pellucid.server.session import Session

FLAGS = ["--no-sandbox", "--disable-gpu", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"]
expect.set_options(timeout=30_000)  # as playwright waits elsewhere
READY = "() => document.querySelector('main nav') && document.querySelector('main')?.getAttribute('aria-busy') === 'false'"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium; a machine without one cannot judge the page, so that is a failure."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "no Chromium on this machine: install it (Debian: apt-get install chromium fonts-noto-cjk)"
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(*arguments: str) -> Iterator[str]:
    """`pellucid open` with these arguments, until the end; its address, token and all."""
    command = [sys.executable, "-m", "pellucid", "open", "--no-browser", *arguments]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    try:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        assert "http://127.0.0.1:" in line, line + server.stderr.read()
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        server.terminate()
        server.wait(10)


@contextmanager
def standing(session: Session) -> Iterator[str]:
    """The page of a desk's model or trace, served by a thread of this process; its address."""
    own, token, ready = taken(0), secrets.token_urlsafe(32), Future[Session]()
    ready.set_result(session)
    at = int(own.getsockname()[1])
    app, api = build(ready, token, at, LIMITS)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, args=([own],))
    thread.start()
    try:
        yield f"http://{HOST}:{at}/#token={token}"
    finally:
        server.should_exit = True
        thread.join(30)
        own.close()
        api.worker.close()


def session(opened: str, **how: Any) -> Session:
    """What stands behind a page; how: `load`'s settings."""
    return Session(opened, LIMITS, **how)


@dataclass
class Visit:
    """A page that is open, and what it did that it should not. refusals: the statuses with which its server may refuse a request."""

    page: Page
    address: str
    refusals: set[int] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    asked: int = 0
    answered: int = 0  # or given up

    @property
    def faults(self) -> list[str]:
        """What it did; the console tells every refused request too, some time after the page has."""
        return [f for f in self.told if not any(f"status of {status} " in f for status in self.refusals)]

    def go(self, lang: str = "en", **place: object) -> None:
        """Open a link: what is selected, by name."""
        base, token = self.address.split("#")
        self.page.goto("about:blank")
        self.page.goto(f"{base}?lang={lang}#{token}&{urlencode({k: str(v) for k, v in place.items()})}")
        self.page.wait_for_function(READY)

    def went(self, _: object) -> None:
        self.asked += 1

    def came(self, _: object) -> None:
        self.answered += 1

    def settle(self) -> None:
        """Until the page has asked for nothing for a while, and has drawn what it was given."""
        quiet, last, end = 0, -1, time.monotonic() + 30
        while quiet < 4:
            assert time.monotonic() < end, f"{self.asked - self.answered} of {self.asked} requests are not answered"
            self.page.wait_for_timeout(80)
            self.page.evaluate("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")
            quiet = quiet + 1 if self.answered == self.asked == last else 0
            last = self.asked

    def ask(self, prompt: str) -> None:
        """Type a prompt and press Enter."""
        self.page.fill("#prompt", prompt)
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(READY)
        self.page.wait_for_function("p => decodeURIComponent(location.hash.replaceAll('+', ' ')).includes(p)", arg=prompt)

    def cell(self, path: str, at: tuple[int, ...], **place: object) -> "Reading":
        """Open a tensor at a cell, and read what stands there."""
        cell = ",".join(map(str, at))
        self.go(tensor=path, cell=cell, **place)
        self.page.wait_for_selector(f'#reading[data-cell="{cell}"]:not([data-value=""])')
        self.page.wait_for_selector('[data-received]:not([data-received=""])')
        hashed = self.page.locator("[data-received]")
        told = {name: hashed.get_attribute(f"data-{name}") or "" for name in ("at", "level", "received", "source")}
        return Reading(self.page.get_attribute("#reading", "data-value") or "", told)

    def total(self) -> float:
        """The sum of the formula under the cell."""
        self.page.wait_for_selector("[data-sum]")
        return float(self.page.get_attribute("[data-sum]", "data-sum") or "nan")


@dataclass
class Reading:
    """The number of a cell as the page prints it, and where its bytes came from: at, level, received (hash), source (hash)."""

    value: str
    bytes: dict[str, str]


@contextmanager
def visiting(browser: Browser, address: str, refusals: Iterable[int] = (), **how: Any) -> Iterator[Visit]:
    """A window on the page; requests elsewhere, complaints and exceptions are faults, and there may be none."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, "color_scheme": "light"} | how)
    visit = Visit(context.new_page(), address, set(refusals))
    own = address.split("#")[0]

    def answer(route: Any) -> None:
        visit.requests.append(route.request.url)
        if route.request.url.startswith(own):
            route.continue_()
        else:
            visit.told.append(route.request.url)
            route.abort()

    context.route("**/*", answer)
    visit.page.on("request", visit.went)
    visit.page.on("requestfinished", visit.came)
    visit.page.on("requestfailed", visit.came)
    visit.page.on("console", lambda m: visit.told.append(m.text) if "GL Driver Message" not in m.text else None)  # software GL is slow
    visit.page.on("pageerror", lambda e: visit.told.append(str(e)))
    visit.page.on("dialog", lambda d: (visit.told.append(f"dialog: {d.message}"), d.dismiss()))
    yield visit
    assert not visit.faults, visit.faults
    context.close()


def saved(browser: Browser, address: str, folder: Path, **place: Any) -> Path:
    """The file that the page's button gives, for this place."""
    with visiting(browser, address) as visit:
        visit.go(**place)
        with visit.page.expect_download() as got:
            visit.page.click("nav .save")
        file = folder / got.value.suggested_filename
        got.value.save_as(file)
    return file


@contextmanager
def offline(browser: Browser, file: Path) -> Iterator[Visit]:
    """The file in a window without a network; what it asks for elsewhere, complains of or throws is a fault."""
    with visiting(browser, f"{file.as_uri()}#", offline=True) as visit:
        yield visit
        assert {r.split("#")[0].split("?")[0] for r in visit.requests} <= {file.as_uri()}


def shown(visit: Visit, file: Path, ready: str, **place: Any) -> None:
    """Open the file at a place."""
    fragment = urlencode({k: str(v) for k, v in place.items()})
    visit.page.goto("about:blank")
    visit.page.goto(file.as_uri() + (f"#{fragment}" if fragment else ""))
    visit.page.wait_for_selector(ready)
