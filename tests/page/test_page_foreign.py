"""A page of another site in the same browser, which knows the port and not the token: it can read, run, frame and change nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser import serve_from_thread

# Each way to reach another site's server, and its result: "" is nothing.
WAYS = """async base => {
  const seen = {}, body = '{"model":"pellucid/capitals","prompt":"The"}';
  const read = async (name, path, init) => {
    try { seen[name] = await (await fetch(base + path, init)).text(); } catch { seen[name] = ""; } // of an opaque answer ""
  };
  await read("get", "api/models");
  await read("guessed token", "api/models", { headers: { Authorization: "Bearer " + "x".repeat(43) } });
  await read("opaque", "api/models", { mode: "no-cors" });
  await read("post", "api/runs", { method: "POST", body, headers: { "Content-Type": "application/json" } });
  await read("simple post", "api/runs", { method: "POST", body, headers: { "Content-Type": "text/plain" }, mode: "no-cors" });
  await read("page", "page.js");
  await read("with cookies", "api/models", { credentials: "include" });
  const element = (name, tag, address, as) => new Promise(done => {
    const e = Object.assign(document.createElement(tag), { [as]: base + address });
    e.onload = () => { seen[name] = "loaded"; done(); };
    e.onerror = () => { seen[name] = ""; done(); };
    document.body.append(e);
    setTimeout(done, 1500);
  });
  await element("script", "script", "page.js", "src");
  await element("style", "link", "page.css", "href");
  await element("picture", "img", "icon.svg", "src");
  const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { src: base }));
  await new Promise(done => { frame.onload = done; setTimeout(done, 1500); });
  try { seen.frame = frame.contentDocument ? frame.contentDocument.body.innerText : ""; } catch { seen.frame = ""; }
  for (const [name, kind] of [["events", EventSource], ["socket", WebSocket]]) await new Promise(done => {
    try {
      const s = new kind((name === "socket" ? base.replace("http", "ws") : base) + "api/models");
      s.onopen = () => { seen[name] = "open"; s.close(); done(); };
      s.onerror = () => { seen[name] ??= ""; s.close(); done(); };
    } catch { seen[name] = ""; done(); }
  });
  const opened = window.open(base + "#prompt=x");
  await new Promise(done => setTimeout(done, 800));
  try { seen.opened = opened?.document?.body?.innerText ?? ""; } catch { seen.opened = ""; }
  return seen;
}"""


@contextmanager
def site(text: str) -> Iterator[str]:
    """Serve a page from another port of this machine, so of another origin. Yields its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.fixture(scope="module")
def own() -> Iterator[str]:
    with serve_from_thread("pellucid/capitals") as address:
        yield address


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_site_gets_nothing(browser: Browser, own: str, name: str) -> None:
    base = own.split("#")[0].replace("127.0.0.1", name)
    with site("<!doctype html><title>other</title><p>x</p>") as other:
        context = browser.new_context()
        page = context.new_page()
        page.goto(other)
        seen = page.evaluate(WAYS, base)
        assert {k: v for k, v in seen.items() if v} == {} and len(seen) >= 13
        context.close()


def test_a_form_of_another_site_runs_nothing(browser: Browser, own: str) -> None:
    base = own.split("#")[0]
    left, right = '{"model":"pellucid/capitals","prompt":"x', '"}'
    form = f"<form method=post enctype=text/plain action={base}api/runs><input name='{left}' value='{right}'></form>"
    with site(f"<!doctype html>{form}") as other:
        context = browser.new_context()
        page = context.new_page()
        page.goto(other)
        with page.expect_navigation() as went:
            page.evaluate("document.querySelector('form').submit()")
        assert went.value is not None and went.value.status == 403
        context.close()


def test_the_page_itself_may(browser: Browser, own: str) -> None:
    """From the page's own origin the token works, and a wrong one is refused."""
    base, token = own.split("#token=")
    context = browser.new_context()
    page = context.new_page()
    page.goto(base)
    read = "async token => (await fetch('api/models', { headers: { Authorization: 'Bearer ' + token } })).status"
    assert page.evaluate(read, token) == 200 and page.evaluate(read, token[:-1]) == 401
    context.close()
