"""The page in a tab of a real Chromium. Requests to other addresses, console messages and exceptions of the page are faults.

Its server runs as `pellucid open` in a process of its own, or in a thread of this process."""

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
    """Start Chromium, and close it at the end. Fails on a machine without one, which cannot judge the page."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert executable is not None, "no Chromium on this machine: install it (Debian: apt-get install chromium fonts-noto-cjk)"
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def serve_from_command(*arguments: str) -> Iterator[str]:
    """Run `pellucid open` with `arguments`. Yields its address with the token, and terminates it at the end."""
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
def serve_from_thread(source: str, **settings: Any) -> Iterator[str]:
    """Serve the page of `source`, a model or a trace, from a thread of this process. Yields its address; settings: of `load`."""
    ready = Future[Session]()
    ready.set_result(Session(source, LIMITS, **settings))
    own, token = taken(0), secrets.token_urlsafe(32)
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


@dataclass
class Tab:
    """A tab of the browser, its requests and its problems. refusals: the statuses with which the server may refuse a request."""

    page: Page
    address: str
    refusals: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    sent: int = 0  # requests
    answered: int = 0  # or given up

    @property
    def faults(self) -> list[str]:
        """Return the problems without the expected refusals, which the console reports some time after the page does."""
        return [p for p in self.problems if not any(f"status of {status} " in p for status in self.refusals)]

    def go(self, lang: str = "en", **place: object) -> None:
        """Open the page at `place`, the fields of its address, in the language `lang`."""
        base, token = self.address.split("#")
        self.page.goto("about:blank")
        self.page.goto(f"{base}?lang={lang}#{token}&{urlencode({k: str(v) for k, v in place.items()})}")
        self.page.wait_for_function(READY)

    def count_request(self, _: object) -> None:
        self.sent += 1

    def count_answer(self, _: object) -> None:
        self.answered += 1

    def settle(self) -> None:
        """Wait until every request is answered and drawn, and no other has been sent for four readings."""
        quiet, last, end = 0, -1, time.monotonic() + 30
        while quiet < 4:
            assert time.monotonic() < end, f"{self.sent - self.answered} of {self.sent} requests are not answered"
            self.page.wait_for_timeout(80)
            self.page.evaluate("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")
            quiet = quiet + 1 if self.answered == self.sent == last else 0
            last = self.sent

    def enter_prompt(self, prompt: str) -> None:
        """Type a prompt and press Enter."""
        self.page.fill("#prompt", prompt)
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(READY)
        self.page.wait_for_function("p => decodeURIComponent(location.hash.replaceAll('+', ' ')).includes(p)", arg=prompt)

    def open_cell(self, path: str, at: tuple[int, ...], **place: object) -> "Reading":
        """Open the tensor `path` at the cell `at`. Returns its number and the provenance of its bytes."""
        cell = ",".join(map(str, at))
        self.go(tensor=path, cell=cell, **place)
        self.page.wait_for_selector(f'#reading[data-cell="{cell}"]:not([data-value=""])')
        self.page.wait_for_selector('[data-received]:not([data-received=""])')
        hashed = self.page.locator("[data-received]")
        provenance = {name: hashed.get_attribute(f"data-{name}") or "" for name in ("at", "level", "received", "source")}
        return Reading(self.page.get_attribute("#reading", "data-value") or "", provenance)

    def formula_sum(self) -> float:
        """Return the sum of the formula under the cell."""
        self.page.wait_for_selector("[data-sum]")
        return float(self.page.get_attribute("[data-sum]", "data-sum") or "nan")


@dataclass
class Reading:
    """The number of a cell as the page prints it, and the provenance of its bytes: at, level, received (hash), source (hash)."""

    value: str
    bytes: dict[str, str]


@contextmanager
def open_tab(browser: Browser, address: str, refusals: Iterable[int] = (), **settings: Any) -> Iterator[Tab]:
    """Open a tab for the page at `address`. Fails at its end if it has faults. settings: of the browser's context."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, "color_scheme": "light"} | settings)
    tab = Tab(context.new_page(), address, set(refusals))
    own = address.split("#")[0]

    def answer(route: Any) -> None:
        tab.requests.append(route.request.url)
        if route.request.url.startswith(own):
            route.continue_()
        else:
            tab.problems.append(route.request.url)
            route.abort()

    context.route("**/*", answer)
    tab.page.on("request", tab.count_request)
    tab.page.on("requestfinished", tab.count_answer)
    tab.page.on("requestfailed", tab.count_answer)
    tab.page.on("console", lambda m: tab.problems.append(m.text) if "GL Driver Message" not in m.text else None)  # software GL is slow
    tab.page.on("pageerror", lambda e: tab.problems.append(str(e)))
    tab.page.on("dialog", lambda d: (tab.problems.append(f"dialog: {d.message}"), d.dismiss()))
    yield tab
    assert not tab.faults, tab.faults
    context.close()


def download_page(browser: Browser, address: str, folder: Path, **place: Any) -> Path:
    """Save the page at `place` by its own button, into `folder`. Returns the file."""
    with open_tab(browser, address) as tab:
        tab.go(**place)
        with tab.page.expect_download() as download:
            tab.page.click("nav .save")
        file = folder / download.value.suggested_filename
        download.value.save_as(file)
    return file


@contextmanager
def open_offline_tab(browser: Browser, file: Path) -> Iterator[Tab]:
    """Open a tab without a network for a saved `file`. Fails at the end if it has faults or requested anything else."""
    with open_tab(browser, f"{file.as_uri()}#", offline=True) as tab:
        yield tab
        assert {r.split("#")[0].split("?")[0] for r in tab.requests} <= {file.as_uri()}


def open_file(tab: Tab, file: Path, ready: str, **place: Any) -> None:
    """Open a saved `file` at `place`, and wait for the selector `ready`."""
    fragment = urlencode({k: str(v) for k, v in place.items()})
    tab.page.goto("about:blank")
    tab.page.goto(file.as_uri() + (f"#{fragment}" if fragment else ""))
    tab.page.wait_for_selector(ready)
