"""The page in a tab of a real Chromium. Requests to other addresses, console messages and exceptions of the page are faults.

Its server runs as `pellucid open` in a process of its own, or in a thread of this process."""

import functools
import itertools
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin
from weakref import WeakKeyDictionary, WeakSet

import uvicorn
from playwright.sync_api import Browser, BrowserContext, Error, Page, Request, expect, sync_playwright

from pellucid.runs.limits import LIMITS
from pellucid.server.app import build
from pellucid.server.listen import HOST, taken
from pellucid.server.session import Session

FLAGS = ["--no-sandbox", "--disable-gpu", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"]
FLAGS.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost")  # no other address is reached
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first draws the same at two thirds of the time
WAIT = 120_000  # ms, for the slowest exhibit on a machine that is busy with other work
expect.set_options(timeout=WAIT)
READY = "() => document.querySelector('main nav') && document.querySelector('main')?.getAttribute('aria-busy') === 'false'"

# Counts what the page waits for (answers, hashes, short timers) and what changes in it, so that a test waits for these and for no time.
WATCHED = """(() => {
  let pending = 0;
  const later = setTimeout, frame = requestAnimationFrame.bind(window);
  const counted = (owner, name, delay = 0) => {
    const own = owner[name];
    owner[name] = function (...how) {
      pending++;
      const delayed = (got) => (delay ? new Promise((go) => later(() => go(got), delay)) : got);
      return Promise.resolve(own.apply(this, how)).then(delayed).finally(() => later(() => pending--, 0));
    };
  };
  counted(window, "fetch", DELAY);
  for (const part of ["arrayBuffer", "json", "text"]) counted(Response.prototype, part);
  const Plain = window.Worker; // whose every message has one answer
  if (Plain) window.Worker = class extends Plain {
    open = 0;
    constructor(...how) {
      super(...how);
      const close = () => { if (this.open > 0) { this.open--; pending--; } };
      for (const name of ["message", "error"]) this.addEventListener(name, () => later(close, 0));
    }
    postMessage(...how) { this.open++; pending++; super.postMessage(...how); }
    terminate() { pending -= this.open; this.open = 0; super.terminate(); }
  };
  if (window.crypto?.subtle) counted(SubtleCrypto.prototype, "digest");
  const timers = new Set();
  window.setTimeout = (run, ms = 0, ...rest) => {
    const id = later((...all) => { timers.delete(id); run(...all); }, ms, ...rest);
    if (ms < 1000) timers.add(id);
    return id;
  };
  const clear = clearTimeout;
  window.clearTimeout = (id) => { timers.delete(id); clear(id); };
  const turn = () => new Promise((go) => frame(() => frame(() => later(go, 0))));
  window.__calm = async () => {
    let changes = 0;
    const watcher = new MutationObserver((all) => { changes += all.length; });
    watcher.observe(document.documentElement, { subtree: true, childList: true, attributes: true, characterData: true });
    for (let quiet = 0, before = -1; quiet < 3; before = changes) {
      await turn();
      const done = document.querySelector("main")?.getAttribute("aria-busy") === "false";
      const still = done && pending === 0 && timers.size === 0 && changes === before;
      quiet = still ? quiet + 1 : 0;
    }
    watcher.disconnect();
  };
})();""".replace("DELAY", os.environ.get("PELLUCID_DELAY", "0"))  # ms by which each answer is late
LOADS = itertools.count(1)
LEFT_AT = "/icon.svg"


def address_of(page: Page) -> str:
    """Return the part of a page's address behind its #, with what the page has not written yet."""
    return str(page.evaluate("dispatchEvent(new Event('pagehide')), location.hash"))


def next_load(address: str) -> str:
    """Return an address without a fragment as one that the browser loads afresh, and in the process that it has: its query is new."""
    return f"{address}{'&' if '?' in address else '?'}load={next(LOADS)}"


@contextmanager
def chromium(names: Iterable[str] = NAMES) -> Iterator[Browser]:
    """Start Chromium, the first of `names` on this machine, and close it at the end. Fails without one: no other judges the page."""
    executable = next(filter(None, map(shutil.which, names)), None)
    assert executable is not None, "no Chromium on this machine (Debian: apt-get install chromium-headless-shell fonts-noto-cjk)"
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
        api.close()


@dataclass
class Tab:
    """A tab of the browser, its requests and its problems. refusals: the statuses with which the server may refuse a request."""

    page: Page
    address: str
    refusals: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """Return the problems without the expected refusals, which the console reports some time after the page does."""
        return [p for p in self.problems if not any(f"status of {status} " in p for status in self.refusals)]

    @property
    def empty(self) -> bool:
        """True until the tab has opened a page: it is new, or shows the picture that a tab is left at."""
        return self.page.url == "about:blank" or self.page.url.endswith(LEFT_AT)

    def go(self, lang: str = "en", **place: object) -> None:
        """Open the page at `place`, the fields of its address, in the language `lang`.

        Without a view it opens at the cards; view="" leaves the view out of the address.
        """
        place = {name: value for name, value in ({"view": "life"} | place).items() if (name, value) != ("view", "")}
        base, token = self.address.split("#")
        self.page.goto(f"{next_load(f'{base}?lang={lang}')}#{token}&{urlencode({k: str(v) for k, v in place.items()})}")
        self.page.wait_for_function(READY)

    def settle(self) -> None:
        """Wait until every request is answered and drawn, and no other has been sent."""
        self.page.evaluate("__calm()")

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


CHANGES: dict[type, tuple[str, ...]] = {
    Page: ("add_init_script", "emulate_media", "expose_binding", "expose_function", "on", "once", "route", "set_viewport_size"),
    BrowserContext: ("add_cookies", "add_init_script", "grant_permissions", "new_cdp_session", "on", "once", "route", "set_offline"),
}
"""What a test may do to a tab that its next load would keep."""
CHANGED = WeakSet[Any]()
MOST_USES = 40


def noted(change: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a page or a context that notes its owner in CHANGED, and does what it did."""

    @functools.wraps(change)
    def note(self: Any, *given: Any, **named: Any) -> Any:
        CHANGED.add(self)
        return change(self, *given, **named)

    return note


for kind, names in CHANGES.items():
    for name in names:
        setattr(kind, name, noted(getattr(kind, name)))


@dataclass(eq=False)
class Window:
    """A page of the browser for one tab after another: another load takes half of a new process' time. tab: the one that has it now."""

    context: BrowserContext
    page: Page
    tab: Tab | None = None
    uses: int = 0

    def is_as_new(self, tab: Tab) -> bool:
        """Empty what the page keeps between loads. False if the tab has changed the page itself, or been at several servers."""
        origins = {url.split("/")[2] for url in tab.requests if url.startswith("http")}
        changed = self.page in CHANGED or self.context in CHANGED or self.context.pages != [self.page]
        if changed or len(origins) != 1 or not tab.address.startswith("http"):
            return False
        self.tab = None
        try:
            self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
            self.page.mouse.move(-1, -1)
            self.page.goto(urljoin(tab.address, LEFT_AT))  # of the same site, whose process then stays
            self.context.clear_cookies()
        except Error:  # of a server that is gone
            return False
        return self.uses < MOST_USES


FREE = WeakKeyDictionary[Browser, dict[str, list[Window]]]()


def open_window(browser: Browser, settings: dict[str, Any]) -> Window:
    """Open a page of its own context, whose requests, messages and exceptions its tab notes."""
    context = browser.new_context(**settings)
    context.set_default_timeout(WAIT)
    window = Window(context, context.new_page())

    def note(request: Request) -> None:
        """Note `request` as it is sent. A route could stop it, at a third of the browser's time; the resolver stops it too."""
        if window.tab is None or request.url.startswith("blob:"):  # the script of a worker, from the page's own memory
            return
        window.tab.requests.append(request.url)
        if not request.url.startswith(window.tab.address.split("#")[0]):
            window.tab.problems.append(request.url)

    def fault(text: str) -> None:
        if window.tab is not None:
            window.tab.problems.append(text)

    context.on("request", note)
    context.add_init_script(WATCHED)
    window.page.on("console", lambda m: fault(m.text) if "GL Driver Message" not in m.text else None)  # software GL is slow
    window.page.on("pageerror", lambda e: fault(str(e)))
    window.page.on("dialog", lambda d: (fault(f"dialog: {d.message}"), d.dismiss()))
    CHANGED.difference_update((context, window.page))
    return window


@contextmanager
def open_tab(browser: Browser, address: str, refusals: Iterable[int] = (), **settings: Any) -> Iterator[Tab]:
    """Open a tab for the page at `address`. Fails at its end if it has faults. settings: of the browser's context."""
    how = {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "light"} | settings
    free = FREE.setdefault(browser, {}).setdefault(repr(sorted(how.items())), [])
    window = free.pop() if free else open_window(browser, how)
    tab = window.tab = Tab(window.page, address, set(refusals))
    window.uses += 1
    yield tab
    assert not tab.faults, tab.faults
    if window.is_as_new(tab):
        free.append(window)
    else:
        window.context.close()


def save_by_menu(page: Page) -> None:
    """Save the page by the entry of its menu."""
    page.click(".share .opener")
    page.click("[data-share=html]")


def download_page(browser: Browser, address: str, folder: Path, **place: Any) -> Path:
    """Save the page at `place` by its own menu, into `folder`. Returns the file."""
    with open_tab(browser, address) as tab:
        tab.go(**place)
        with tab.page.expect_download() as download:
            save_by_menu(tab.page)
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
    tab.page.goto(next_load(file.as_uri()) + (f"#{fragment}" if fragment else ""))
    tab.page.wait_for_selector(ready)


def turn_file(tab: Tab, file: Path, ready: str, **place: object) -> None:
    """Go to another place of a saved `file`, as `open_file` does, but without loading it again where the tab shows it."""
    if tab.page.url.partition("#")[0].partition("?")[0] != file.as_uri():
        return open_file(tab, file, ready, **place)
    tab.page.evaluate("h => { location.hash = h }", urlencode({k: str(v) for k, v in place.items()}))
    tab.page.wait_for_selector(ready)
