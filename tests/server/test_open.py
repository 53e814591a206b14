"""`pellucid open` as a process: one line with the address, one line for an error, quiet ends, sockets that misbehave."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from covering import FULL
from documented import accept
from pellucid.commands import main
from served import judge


def started(*words: str) -> "subprocess.Popen[str]":
    """Start the command in a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BROWSER": "false"}
    command = [sys.executable, "-m", "pellucid", "open", *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Running:
    """A server on a port, and its token."""

    def __init__(self, *words: str) -> None:
        self.process = started("--no-browser", "--json", *words)
        assert self.process.stdout is not None
        self.announced = json.loads(self.process.stdout.readline())
        base, _, self.token = self.announced["address"].partition("#token=")
        self.port = int(base.rstrip("/").rpartition(":")[2])

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as wrong:
            return wrong.code, wrong.read()

    def raw(self, text: bytes) -> bytes:
        """Send these bytes on a socket and return the answer's head; empty if the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as s:
            out = b""
            with contextlib.suppress(ConnectionError):
                s.sendall(text)
                while b"\r\n\r\n" not in out and (piece := s.recv(65536)):
                    out += piece
            return out

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = Running()
    yield running
    assert running.end() == (0, "")


def test_the_address(server: Running) -> None:
    accept(server.announced, "open")
    assert server.announced["model"] == "pellucid/capitals"
    status, body = server.ask("/api/models")
    assert status == 200 and judge(json.loads(body), "models")["current"] == "pellucid/capitals"
    assert b" 401 " in server.raw(request("/nix", server)).split(b"\r\n")[0]


def request(path: str, server: Running, *more: str, method: str = "GET") -> bytes:
    """Return the head of a request from this machine."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Connection: close", *more, "", "")).encode()


def test_heads_that_misbehave(server: Running) -> None:
    own, token = f"Host: 127.0.0.1:{server.port}", f"Authorization: Bearer {server.token}"

    def status(*lines: str) -> int:
        head = re.match(rb"HTTP/1\.1 (\d+)", server.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")))
        return int(head[1]) if head else 0

    good = ("GET /api/models HTTP/1.1", own, token, "Connection: close")
    assert status(*good) == 200
    assert status(*good, own) == 400 and status(*good, "Host: evil.com") == 400  # h11 or we
    assert status("GET /api/models HTTP/1.1", token, "Connection: close") in (400, 403)
    assert status("GET /api/models HTTP/1.0", token) == 403
    assert status("GET http://evil.com/api/models HTTP/1.1", "Host: evil.com", token) == 403
    assert status("GET //api/models HTTP/1.1", own, "Connection: close") == 401
    assert status("OPTIONS /api/runs HTTP/1.1", own, "Origin: http://evil.com", "Connection: close") == 403
    assert status("TRACE / HTTP/1.1", own, "Connection: close") == 405
    assert status("GET / HTTP/9.9") in (0, 400, 403) and status("\x00\xff") in (0, 400)
    assert status("GET /" + "a" * 200_000 + " HTTP/1.1", own) in (0, 400, 414, 431)
    assert status(*good, *(f"X-{i}: y" for i in range(5000))) in (0, 200, 400, 431)
    assert status("POST /api/runs HTTP/1.1", own, token, "Content-Type: application/json", "Content-Length: 5", "Content-Length: 6") == 400
    assert server.ask("/api/models")[0] == 200


def test_an_unfinished_request_leaves_no_thread(server: Running) -> None:
    """After unfinished bodies and runs whose client left, the process has no more threads than before, and answers."""
    body = json.dumps({"model": "pellucid/capitals-llama", "prompt": "The", "new": 200}).encode()
    more = (f"Authorization: Bearer {server.token}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = request("/api/runs", server, *more, method="POST")
    assert server.ask("/api/runs", body)[0] == 200

    def count() -> int:
        return len(os.listdir(f"/proc/{server.process.pid}/task"))

    def leave() -> None:
        for i in range(12):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
                s.sendall(head + (body if i % 3 else body[:10]))
        assert server.ask("/api/runs", b'{"model":"pellucid/capitals","prompt":"The"}')[0] in (200, 429)

    leave()
    before = count()
    leave()
    for _ in range(200):
        if count() <= before and server.ask("/api/runs", b'{"model":"pellucid/capitals","prompt":"The"}')[0] == 200:
            break
        time.sleep(0.05)
    else:
        raise AssertionError(f"{before} threads, then {count()}")


def test_a_port_that_is_taken(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "--no-browser", "--port", str(server.port)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(rf"pellucid: port {server.port} [^\n]+\n", err)
    assert main(["open", "--port", "65536", "--no-browser"]) == 2 and "65535" in capsys.readouterr().err


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    process = started("--no-browser", str(tmp_path))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and out == "" and re.fullmatch(r"pellucid: [^\n]*config\.json[^\n]*\n", err)


@pytest.mark.parametrize("name", ["pellucid/capital", "no/such/model", "/no/folder", "capitals"])
def test_no_address_before_a_name_is_known(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "--no-browser", name]) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"pellucid: [^\n]*pellucid/capitals[^\n]*\n", err)


UNHEARD = """
import os, signal, weakref
from pellucid.server.listen import serve
class Lock: pass
def ready(address):
    lock = Lock()
    kept = weakref.ref(lock, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del lock
    print("told", flush=True)
serve(0, None, ready)
"""


def test_it_ends_where_an_exception_would_be_dropped() -> None:
    """Ctrl-C ends the process even inside a weakref's callback, where a raised exception is lost."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", UNHEARD], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_it_ends_while_it_loads_and_while_it_runs() -> None:
    """Ctrl-C before the model is loaded or in the middle of a run leaves nothing on stderr and no process."""
    # torch is imported in one of these: the interpreter's end in its middle aborted the process
    for delay in (0.0, 0.2, 0.5)[:: 1 if FULL else 2]:
        early = Running()
        time.sleep(delay)
        assert early.end() == (0, "")
    running = Running("pellucid/capitals-llama")
    body = json.dumps({"model": "pellucid/capitals-llama", "prompt": "The", "new": 256}).encode()
    assert running.ask("/api/models")[0] == 200
    more = (f"Authorization: Bearer {running.token}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = request("/api/runs", running, *more, method="POST")
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as s:
        s.sendall(head + body)
        time.sleep(0.2)
        assert running.end() == (0, "")
