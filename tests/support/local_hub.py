"""A hub on this machine: the part of the Hugging Face hub's protocol that loading a model uses, with the faults that a test sets.

It answers /api/models/{id}/revision/{revision}, /api/models/{id}/tree/{commit} and /{id}/resolve/{revision}/{file}, and keeps a log.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + 34 * "0"
LARGE = (".safetensors", ".bin")  # what the hub names after its SHA-256, and the rest after git's hash


@dataclass
class LoggedRequest:
    """A request as the hub logs it."""

    method: str
    path: str
    range: str | None
    token: str | None
    host: str


@dataclass
class Hub:
    """Models by id, each {file: bytes}, the faults of the hub, and its log of requests.

    status: {path's end: HTTP status}.  cut: {file: bytes after which its first answer breaks off}.  short: {file: length that its
    answers say and have}.  swapped: {file: bytes that come instead}.  elsewhere: weights are redirected to another host's name.
    """

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    short: dict[str, int] = field(default_factory=dict)
    swapped: dict[str, bytes] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_right"
    elsewhere: bool = False
    commit: str = COMMIT
    requests: list[LoggedRequest] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, name: str, folder: Path, **more: bytes) -> None:
        """Add a model of a folder's files and of `more`."""
        self.models[name] = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} | more

    def gets(self) -> list[str]:
        """Return the names of the files whose bytes were requested."""
        return [a.path.rpartition("/")[2] for a in self.requests if a.method == "GET" and "/api/" not in a.path]


def etag(file: str, content: bytes) -> str:
    """Return the name that the hub gives to a file's content."""
    if file.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Answer(BaseHTTPRequestHandler):
    """The handler of one request."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def log_message(self, *args: object) -> None:
        """Print nothing on stderr."""

    def answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        headers = self.headers
        hub.requests.append(LoggedRequest(self.command, path, headers["Range"], headers["Authorization"], headers["Host"].split(":")[0]))
        if code := next((c for end, c in hub.status.items() if path.endswith(end)), None):
            return self.send(code, b"refused")
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"]:
            return self.about("/".join(words[2:4]), words[4], words[5])
        name, file = ("/".join(words[1:3]), words[3]) if words[0] == "cdn" else ("/".join(words[:2]), "/".join(words[4:]))
        if name not in hub.models:
            return self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if name in hub.gated and words[0] != "cdn" and headers["Authorization"] != f"Bearer {hub.token}":
            return self.send(403 if headers["Authorization"] else 401, b"", {"X-Error-Code": "GatedRepo"})
        if file not in hub.models[name]:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
        self.file(name, file, words[0] == "cdn")

    def about(self, name: str, kind: str, revision: str) -> None:
        """Send the hub's document of a model: its commit and its files."""
        hub = self.hub
        if name not in hub.models:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", "v1", hub.commit):
            return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = hub.models[name].items()
        document: object = [{"type": "file", "path": n, "size": len(b), "oid": etag(n, b)} for n, b in files]
        if kind == "revision":
            document = {"id": name, "sha": hub.commit, "siblings": [{"rfilename": n, "size": len(b)} for n, b in files]}
        self.send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def file(self, name: str, file: str, cdn: bool) -> None:
        """Send a file's bytes, or a part of them, or a redirect to them."""
        hub, content = self.hub, self.hub.models[name][file]
        tags = {"ETag": f'"{etag(file, content)}"', "X-Repo-Commit": hub.commit, "Accept-Ranges": "bytes"}
        if hub.elsewhere and not cdn and file.endswith(LARGE):
            away = {"Location": f"http://localhost:{hub.port}/cdn/{name}/{file}?Signature=secret", "ETag": '"of the redirect"'}
            return self.send(302, b"", tags | away | {"X-Linked-Etag": tags["ETag"], "X-Linked-Size": str(len(content))})
        if self.command == "GET":
            content = hub.swapped.get(file, content)[: hub.short.get(file)]
        if byte_range := self.headers["Range"]:
            start = int(byte_range.removeprefix("bytes=").split("-")[0])
            tags["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self.send(206, content[start:], tags)
        self.send(200, content, tags, hub.cut.pop(file, None) if self.command == "GET" else None)

    def send(self, code: int, content: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])
        self.close_connection = self.close_connection or cut is not None


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve the hub at its address while the context is open."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Answer,), {"hub": hub}))
    server.daemon_threads, hub.port = True, server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
