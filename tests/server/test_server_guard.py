"""The guard admits the page's own requests only, and hostile requests get one shape of error, no traceback, no file and no thread."""

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from pellucid.bench.idle import TABLE
from pellucid.errors import RequestError
from pellucid.runs.limits import LIMITS, Limits
from pellucid.server import faults
from pellucid.server.files import File, files
from pellucid.server.guard import HEADERS, Guard, language
from served import PAGE, PORT, TOKEN, Served, judge
from tiny import swapped

OWN = f"127.0.0.1:{PORT}"
GOOD_HOSTS = (OWN, f"localhost:{PORT}", f"[::1]:{PORT}")
BAD_HOSTS = (
    None, "", "evil.com", f"evil.com:{PORT}", f"evil.localhost.com:{PORT}", f"localhost.evil.com:{PORT}", f"127.0.0.1.nip.io:{PORT}",
    "127.0.0.1", "localhost", "[::1]", f"127.0.0.1:{PORT + 1}", f"localhost:{PORT}0", f"localhost:0{PORT}", f"localhost/?:{PORT}",
    f"[::1]x:{PORT}", f"localhost.:{PORT}", f"LOCALHOST:{PORT}", f"0.0.0.0:{PORT}", f"127.1:{PORT}", f"127.0.0.2:{PORT}",
    f"2130706433:{PORT}", f"0x7f.1:{PORT}", f"::1:{PORT}", f"[::]:{PORT}", f"[::ffff:127.0.0.1]:{PORT}", f"user@localhost:{PORT}",
    f"localhost:{PORT}@evil.com", f" localhost:{PORT}", f"localhost:{PORT} ", f"localhost\t:{PORT}", f"localhost:{PORT},evil.com",
    f"localhost:{PORT}#", f"localhost:{PORT}/", f"http://localhost:{PORT}", f"localhost:{PORT}\x00", f"ﬂocalhost:{PORT}",
    f"localhost%00:{PORT}",
)  # fmt: skip
ORIGINS = (None, "own", "null", "https://evil.com", "http://localhost:1", "http://127.0.0.1:9", "own/", "https-own", "", "http://evil.com")
TOKENS = (f"Bearer {TOKEN}", f"bearer {TOKEN}", None, "", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN)
SITES = (None, "none", "same-origin", "same-site", "cross-site", "new-kind")
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS", "TRACE", "CONNECT")
PATHS = (*PAGE, "/api/models", "/api/runs/x", "/api", "/nix", "//", "/assets/../api/models", "/API/models", "/assets/")


def scope(path: str, method: str, headers: list[tuple[str, str]], query: str = "") -> dict[str, Any]:
    raw = [(k.encode(), v.encode("utf-8")) for k, v in headers]
    return {"type": "http", "path": path, "method": method, "headers": raw, "query_string": query.encode()}


def guard(limits: Limits = LIMITS) -> Guard:
    return Guard(lambda *a: None, TOKEN, PORT, frozenset(PAGE), limits)  # type: ignore[arg-type,return-value]


def checked(g: Guard, **request: Any) -> int:
    """Return the status that the guard gives; 200 if it lets a request through."""
    try:
        g.check(scope(**request))
    except RequestError as refused:
        return refused.status
    return 200


def unexpected(g: Guard) -> Iterator[tuple[Any, ...]]:
    """Yield the requests of the matrix whose status is not that of the rules."""
    for host, origin, token, site, method, path in itertools.product((*GOOD_HOSTS, *BAD_HOSTS), ORIGINS, TOKENS, SITES, METHODS, PATHS):
        if sum((host != OWN, origin is not None, token != TOKENS[0], site is not None)) > 2:
            continue  # two things wrong at once are enough
        own = {"own": f"http://{host}", "own/": f"http://{host}/", "https-own": f"https://{host}"}
        sent_origin = None if origin is None else own.get(origin, origin)
        given = {"host": host, "origin": sent_origin, "authorization": token, "sec-fetch-site": site, "content-type": "application/json"}
        status = checked(g, path=path, method=method, headers=[(k, v) for k, v in given.items() if v is not None])
        right = 200
        if host not in GOOD_HOSTS or origin not in (None, "own") or site not in (None, "none", "same-origin"):
            right = 403
        elif path not in PAGE and token not in TOKENS[:2]:
            right = 401
        elif method not in METHODS[:4]:
            right = 405
        if status != right:
            yield host, origin, token, site, method, path, status


def test_the_matrix() -> None:
    assert len(BAD_HOSTS) + len(GOOD_HOSTS) >= 40
    assert list(unexpected(guard())) == []


def test_every_route_by_host_and_origin(api: Served) -> None:
    """With the right token a request is answered for this page's own host and origin only."""
    routes = [(r.path, m) for r in api.api.routes() for m in sorted(r.methods or ())]
    assert len(routes) > 20
    for (path, method), host, origin in itertools.product(routes, (*GOOD_HOSTS, *BAD_HOSTS), ORIGINS):
        sent_origin = {"own": f"http://{host}", "own/": f"http://{host}/", "https-own": f"https://{host}"}.get(origin or "", origin)
        given = {"host": host, "origin": sent_origin, "authorization": TOKENS[0], "content-type": "application/json"}
        status = checked(guard(), path=path, method=method, headers=[(k, v) for k, v in given.items() if v is not None])
        assert status == (200 if host in GOOD_HOSTS and origin in (None, "own") else 403), (path, method, host, origin)


MUTANTS: dict[str, Any] = {
    "hosts": {*(f"{h}:{PORT}" for h in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0"))},
    "free": frozenset({*PAGE, "/api/models"}),
    "knows": lambda headers: TOKEN in headers.get("authorization", ""),
    "check": lambda scope: None,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_matrix_sees_mutants(name: str) -> None:
    mutant = guard()
    setattr(mutant, name, MUTANTS[name])
    assert next(unexpected(mutant), None)


def test_a_link_that_a_person_followed() -> None:
    """From another site a GET navigation gets the page alone, which then sends its own requests with the token."""
    followed = [("host", OWN), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]
    assert checked(guard(), path="/", method="GET", headers=followed) == 200
    assert checked(guard(), path="/", method="POST", headers=followed) == 403
    assert checked(guard(), path="/api/models", method="GET", headers=[*followed, ("authorization", TOKENS[0] or "")]) == 403
    assert checked(guard(), path="/", method="GET", headers=[*followed[:2], ("sec-fetch-mode", "no-cors")]) == 403


def test_headers_that_speak_twice_or_of_too_much() -> None:
    good = [("host", OWN), ("authorization", TOKENS[0] or ""), ("content-type", "application/json")]
    for name in ("host", "origin", "authorization", "content-type", "content-length", "sec-fetch-site"):
        assert checked(guard(), path="/api/models", method="GET", headers=[*good, (name, OWN), (name, OWN)]) == 400
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonx"):
        assert checked(guard(), path="/api/runs", method="POST", headers=[*good[:2], ("content-type", kind)]) == 415
    assert checked(guard(), path="/api/runs", method="POST", headers=good[:2]) == 415
    assert (
        checked(guard(), path="/api/runs", method="POST", headers=[*good[:2], ("content-type", "Application/JSON; charset=utf-8")]) == 200
    )
    assert checked(guard(), path="/api/runs", method="POST", headers=[*good, ("content-encoding", "gzip")]) == 415
    for length, status in (("1000001", 413), ("9" * 40, 413), ("-1", 400), ("1e3", 400), ("٣", 400), ("1000000", 200)):
        assert checked(guard(), path="/api/runs", method="POST", headers=[*good, ("content-length", length)]) == status
    assert checked(guard(), path="/api/models", method="GET", headers=good, query="x" * 4001) == 414


def sound(reply: Any) -> str:
    """Return an answer's text after checking the headers that keep a browser from running it, and the shape of an error."""
    for name, value in HEADERS.items():
        assert reply.headers[name] == value
    assert "access-control-allow-origin" not in reply.headers and "set-cookie" not in reply.headers
    if reply.status_code >= 400:
        judge(reply.json(), "error")
        assert reply.headers["cache-control"] == "no-store"
    return str(reply.text)


def test_every_route_asks_for_the_token(api: Served) -> None:
    """Every route with each method answers 401 without the token, and its own answer with it."""
    paths = [r.path for r in api.api.routes() if isinstance(r, Route)]
    assert len(paths) > 10
    for path in paths:
        place = path.replace("{run}", "0" * 32).replace("{n}", "0").replace("{step}", "0")
        assert api.client.get(place, headers={"host": "evil.com"}).status_code == 403
        for method in ("GET", "POST", "PATCH", "OPTIONS", "HEAD"):
            bare = api.client.request(method, place, headers={"authorization": ""}, json={})
            if path not in PAGE:
                assert (bare.status_code, bare.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
            if method != "HEAD":
                sound(bare)
            right = api.client.request(method, place, json={})
            assert right.status_code in (200, 400, 404, 405)
    assert "evil.com" not in str(api.client.get("/", headers={"host": "evil.com"}).headers)


def test_policy() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy and "*" not in policy and "http" not in policy
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert f"{name} 'none'" in policy


def test_files_of_the_page(api: Served, tmp_path: Any) -> None:
    page = api.client.get("/", headers={"authorization": ""})
    assert (
        page.status_code == 200
        and page.headers["content-type"] == "text/html; charset=utf-8"
        and page.headers["cache-control"] == "no-cache"
    )
    sound(page)
    again = api.client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert again.status_code == 304
    script = api.client.get("/assets/page-DEADBEEF.js")
    assert script.headers["cache-control"].endswith("immutable") and script.headers["content-type"].startswith("text/javascript")
    for path in (
        "/assets/..%2f..%2fpyproject.toml", "/..%2f..%2fetc/passwd", "/assets/%5c..%5cx", "/....//etc/passwd", "/%00", "/assets/page.js",
        "/etc/passwd", "/assets", "/assets/", "//assets/page-DEADBEEF.js", "/ASSETS/page-DEADBEEF.js", "/con", "/index.html.bak",
        "/.git/config",
    ):  # fmt: skip
        reply = api.client.get(path)
        assert reply.status_code == 404, path
        sound(reply)
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("x")
    (tmp_path / "assets" / "a.py").write_text("x")
    (tmp_path / "assets" / "link.js").symlink_to("/etc/passwd")
    assert set(files(tmp_path)) == {"/", "/index.html"} and files(tmp_path / "none") == {}
    assert File("/assets/a-12345678.js", b"", "").keeping.endswith("immutable") and File("/page.js", b"", "").keeping == "no-cache"


MARKUP = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", '"><svg onload=alert(1)>',
    "javascript:alert(1)", "{{7*7}}", "${7*7}", "'-alert(1)-'", "<iframe srcdoc='x'>", "<!--", "]]>", "&lt;b&gt;",
    "<a href=//evil.com>", "<base href=//evil.com/>", "<meta http-equiv=refresh content=0>", "<style>*{}</style>",
    "%3Cscript%3E", "\\u003cscript\\u003e", "`${alert(1)}`",
]  # fmt: skip
PATHLIKE = [
    "../../../etc/passwd", "/etc/passwd", "..\\..\\windows\\win.ini", "file:///etc/passwd", "http://169.254.169.254/",
    "//evil.com/x", "C:\\x", "\\\\evil\\share", "/dev/zero", "/proc/self/environ", "~/.ssh/id_rsa", "CON",
    "pellucid/../../../etc", "./", "..", ".", "pellucid/capitals/../capitals", "pellucid/capitals\x00", "models--x",
    "x@y", "s3://x/y", "a/b", "-", "--help", "%2e%2e%2f",
]  # fmt: skip
TEXTUAL = [
    "\x00", "\x1b[31mred\x1b[0m", "a\r\nset-cookie: x=1", "\u202etxt", "\u200b", "\ufeff", "\ud7ff",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "é́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́́",
    'A' * 3000, "%s%s%n", "{0.__class__}", "{key}", "{}", "'; DROP TABLE runs;--", "$(id)", "`id`", "|| id", "=1+1",
    "@SUM(1)", "NaN", "Infinity", "-0", "1e999", '9' * 300, "null", "true", "[]", "{}", "undefined", "__proto__",
    "constructor", "\t", " ", "０", "١", "𝟙", "0x10", "1_000", "+1", "0:0", ":::", "0,0,0,0,0,0,0,0,0", "1e3", "-1",
    "0,", ",", "0;1", "a:b", ":-1", "2**64", "18446744073709551616", "-9223372036854775809", "\u2028", "\x7f", "\x85",
    '<' * 500, "\U0010ffff", "\x85x", 'a' * 64, "layers.*", "*",
]  # fmt: skip
FULL = bool(os.environ.get("PELLUCID_FULL"))
PAYLOADS = [*MARKUP, *PATHLIKE, *TEXTUAL]
LOOSE = re.compile(r"[<>]|Traceback|File \"|0x[0-9a-f]{8}|site-packages")
events: list[str] = []
listening = False


def hear(event: str, args: tuple[Any, ...]) -> None:
    outward = event in ("open", "socket.connect", "subprocess.Popen", "os.exec", "os.system", "ctypes.dlopen")
    if listening and outward and str(args[0]) != str(TABLE):  # which an engine reads, to know how busy the machine is
        events.append(f"{event} {args[0]}")


def places(api: Served, run: str, text: str) -> Iterator[Any]:
    """Yield the answers of all places that a text of the page reaches."""
    client = api.client
    yield client.post("/api/runs", json={"model": text, "prompt": "The"})
    yield client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": text})
    if len(text) % 3 == 0:
        yield client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": "The", "changes": [f"{text} = 0"]})
    yield client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": "The", text: 1})
    yield client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": "The", "sampling": {"seed": text}})
    yield client.post("/api/runs", content=text.encode("utf-8", "surrogatepass"), headers={"content-type": "application/json"})
    yield client.get(f"/api/runs/{run}/tensors/0", params={"at": text})
    yield client.get(f"/api/runs/{run}/tensors/0", params={"level": text})
    yield client.get(f"/api/runs/{run}/tensors/7/terms", params={"cell": text})
    yield client.get("/api/models", params={text: "1"})
    yield client.get("/api/models", params={"lang": text})
    yield client.get("/api/weights", params={"model": text})
    yield client.get("/api/weights/tensor", params={"model": "pellucid/capitals", "path": text})
    yield client.get("/api/count", params={"model": text})
    yield client.get("/api/count", params={"model": "gpt2-small", "device": text, "attn": text})
    yield client.get("/api/count", params={"model": "gpt2-small", "ranks": text, "price": text})
    yield client.get("/api/count/why", params={"model": "gpt2-small", "path": text})
    yield client.get("/api/count/along", params={"model": "gpt2-small", "along": text})
    yield client.post("/api/bench", json={"model": text})
    quoted = "".join(f"%{b:02x}" for b in text[:300].encode("utf-8", "surrogatepass"))
    yield client.get(f"/api/runs/{quoted}")
    yield client.get(f"/api/runs/{run}/tensors/{quoted}")
    yield client.get("/", headers={"x-any": text.encode("ascii", "ignore").decode().translate(dict.fromkeys(range(32))).strip() or "x"})


def test_hostile_words(api: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """A hostile text gets an error or a result without markup; no file is opened and no process started.

    PELLUCID_FULL=1 sends every text, otherwise one in ten.
    """
    global listening
    assert len(set(PAYLOADS)) >= 100
    run = api.run("pellucid/capitals", "The")["run"]
    for reply in places(api, run, "The"):  # what is imported at first use is imported
        assert reply.status_code < 500
    sys.addaudithook(hear)
    events.clear()
    listening = True
    try:
        for text in PAYLOADS if FULL else PAYLOADS[::10]:
            for reply in places(api, run, text):
                assert reply.status_code < 500 and reply.status_code != 429, (text, reply.text)
                assert reply.headers["content-type"] in ("application/json", "application/octet-stream", "text/html; charset=utf-8")
                body = sound(reply)
                if reply.headers["content-type"] == "application/json":
                    assert not LOOSE.search(body) or "<" not in body, body
                    assert "\n" not in json.loads(body).get("error", {}).get("message", "")
                    assert "set-cookie" not in reply.headers
    finally:
        listening = False
    assert events == []
    assert "Traceback" not in capfd.readouterr().err


def test_the_audit_hears() -> None:
    global listening
    sys.addaudithook(hear)
    events.clear()
    listening = True
    try:
        open(__file__, encoding="utf-8").close()
    finally:
        listening = False
    assert events


def test_bodies_that_are_none(api: Served) -> None:
    def code(body: bytes, **headers: str) -> tuple[int, str]:
        reply = api.client.post("/api/runs", content=body, headers={"content-type": "application/json", **headers})
        return reply.status_code, str(judge(reply.json(), "error")["error"]["code"])

    assert code(b'{"model":"\\udcff"}') == (400, "json.surrogate")
    assert code(b"x" * 10_000_000) == (413, "server.body")

    def trickle() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 100_000

    reply = api.client.post("/api/runs", content=trickle(), headers={"content-type": "application/json"})  # without a length
    assert reply.status_code == 413
    assert code(b"[" * 100_000)[0] == 400 and code(b'{"a":1,"a":2}') == (400, "json.twice") and code(b"[]") == (400, "json.object")
    assert code(b'{"new":NaN}') == (400, "json.finite") and code(b"") == (400, "json.empty") and code(b"\xff{}") == (400, "json.encoding")
    assert code(b'{"new":' + b"9" * 10**6 + b"}")[0] in (400, 413)


def test_numbers_at_their_bounds(api: Served) -> None:
    def status(**how: Any) -> int:
        reply = api.client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": "The", **how})
        if reply.status_code != 200:
            assert judge(reply.json(), "error")["error"]["code"].startswith(("server.", "sampling."))
        return reply.status_code

    assert [status(new=n) for n in (0, 1, 257, -1, 1.5, "5", True, 10**12, None)] == [400, 200, 400, 400, 400, 400, 400, 400, 200]
    temperatures = (-1, 0, 1e-30, 1000.0, 1000.1, "1", False, 1)
    assert [status(sampling={"temperature": t}) for t in temperatures] == [400, 200, 200, 200, 400, 400, 400, 200]
    assert [status(sampling={"seed": s}) for s in (0, 2**53 - 1, 2**64, 1.0, None)] == [200, 200, 400, 400, 200]
    ids = ([], [0], [-1], [4479], [True], ["1"], [0.5], [2**64], [0] * 9000)
    assert [status(prompt=None, ids=i) for i in ids] == [400, 200, 400, 200, 400, 400, 400, 400, 400]
    assert status(ids=[1]) == status(prompt=None) == status(prompt="") == status(prompt=["a"]) == 400
    long = api.client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": "The", "new": 64})
    assert judge(long.json(), "error")["error"]["code"] == "generate.context"
    unknown = api.client.post("/api/runs", json={"model": "pellucid/capitals", "ids": [4480]})
    assert judge(unknown.json(), "error")["error"]["code"] == "decode.id"


def test_errors_speak_the_pages_language(api: Served) -> None:
    messages = {lang: api.wrong("/api/runs/x", 404, "server.run", lang=lang)["message"] for lang in ("en", "zh")}
    assert re.search(r"[\u3400-\u9fff]", messages["zh"]) and not re.search(r"[\u3400-\u9fff]", messages["en"])
    body = {"model": "pellucid/capitals", "ids": [4480]}  # refused in the thread that runs models
    reply = api.client.post("/api/runs?lang=zh", json=body)
    assert re.search(r"[\u3400-\u9fff]", reply.json()["error"]["message"])
    assert language({"query_string": b"lang=fr"}) is None


def test_a_failure_of_ours_has_a_reference(api: Served, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*given: object) -> None:
        raise ValueError("what the user wrote")

    with swapped(type(api.session), "catalog", broken):
        error = api.wrong("/api/catalog", 500, "server.unforeseen")
    err = capsys.readouterr().err
    reference = re.search(r"[0-9a-f]{8}", error["message"])
    assert reference and reference[0] in err and "ValueError" in err and "what the user wrote" not in err + error["message"]
    assert faults.error_response(ValueError("x"), "en").status_code == 500
