"""The guard of `pellucid serve`, its key and its addresses; the process: what it prints, how it drains, how it ends at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from documented import accept
from openai_served import long_folder, openai_served
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.commands import main
from pellucid.errors import RequestError, UseError
from pellucid.server.openai.serve_guard import ServeGuard
from pellucid.server.openai.serving import SERVE_LIMITS, Address
from tiny import swapped

PORT, KEY = 8000, "sk-secret"
MODEL = "pellucid/capitals"


def status(guard: ServeGuard, path: str = "/v1/models", method: str = "GET", **headers: str) -> int:
    """Return the status that the guard gives; 200 if it lets a request through."""
    named = {"host": f"127.0.0.1:{PORT}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    raw = [(k.encode(), v.encode()) for k, v in named.items()]
    try:
        guard.check({"type": "http", "path": path, "method": method, "headers": raw, "query_string": b""})
    except RequestError as refused:
        return refused.status
    return 200


def guard(key: str | None = None, loopback: bool = True, *names: str) -> ServeGuard:
    return ServeGuard(lambda *a: None, key, PORT, loopback, frozenset(names), SERVE_LIMITS)  # type: ignore[arg-type,return-value]


PATHS = ("/v1/models", "/v1/completions", "/metrics", "/version", "/health", "/nothing")


def guard_faults() -> list[str]:
    """Return the requests whose status is not that of the rules."""
    out, good, wrong = [], {"authorization": f"Bearer {KEY}"}, {"authorization": "Bearer sk-secre"}
    for path in PATHS:
        rules = [
            ("foreign host", status(guard(), path, host="evil.com"), 403),
            ("foreign name", status(guard(), path, host=f"evil.com:{PORT}"), 403),
            ("other port", status(guard(), path, host=f"127.0.0.1:{PORT + 1}"), 403),
            ("foreign origin", status(guard(), path, origin="http://evil.com"), 403),
            ("foreign site", status(guard(), path, sec_fetch_site="cross-site"), 403),
            ("rebound name", status(guard(KEY, False), path, host=f"evil.com:{PORT}", **good), 403),
            ("number", status(guard(KEY, False), path, host="192.168.1.9:9", **good), 200),
            ("number on loopback", status(guard(), path, host=f"192.168.1.9:{PORT}"), 403),
            ("six", status(guard(KEY, False), path, host="[fe80::1]:9", **good), 200),
            ("allowed name", status(guard(KEY, False, "api.lan"), path, host="api.lan:443", **good), 200),
            ("key", status(guard(KEY), path, **good), 200),
            ("no key", status(guard(KEY), path), 200 if path == "/health" else 401),
            ("wrong key", status(guard(KEY), path, **wrong), 200 if path == "/health" else 401),
            ("form", status(guard(), path, "POST", content_type="text/plain"), 415),
            ("options", status(guard(), path, "OPTIONS"), 405),
        ]
        out += [f"{path}: {name}" for name, got, right in rules if got != right]
    return out


def test_the_guard() -> None:
    assert guard_faults() == []


@pytest.mark.parametrize("name", ["own", "knows"])
def test_guard_mutants(name: str) -> None:
    with swapped(ServeGuard, name, lambda *a: True):
        assert guard_faults()


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert status(guard(KEY), authorization="Bearer x") == 401 and compared == [(b"x", KEY.encode())]


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (Address("0.0.0.0"), "serve.open"), (Address("::"), "serve.open"), (Address("192.168.0.1", key=None), "serve.open"),
        (Address("example.org"), "serve.host"), (Address(key=" a"), "serve.key.kind"), (Address(key="é"), "serve.key.kind"),
    ],
)  # fmt: skip
def test_addresses_that_are_refused(address: Address, key: str) -> None:
    with pytest.raises(UseError) as refused:
        address.check()
    assert refused.value.key == key


def test_addresses_that_are_taken() -> None:
    for address in (Address(), Address("::1"), Address("0.0.0.0", key="k"), Address("0.0.0.0", insecure=True)):
        address.check()


def test_wrong_uses_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--host", "0.0.0.0"], ["--max-queue", "0"], ["--tokens", "0"], [MODEL], ["--adapter", "a"], ["--port", "70000"]):
        assert main(["serve", MODEL, *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_no_answer_and_no_cors_header_shows_the_key() -> None:
    with openai_served(load(MODEL), key=KEY) as server:
        for path, body in (("/v1/models", None), ("/metrics", None), ("/v1/completions", {"prompt": "a", "max_tokens": 1})):
            reply = server.client.get(path) if body is None else server.client.post(path, json=body)
            assert reply.status_code == 200 and KEY not in reply.text + str(reply.headers)
            assert not [name for name in reply.headers if name.startswith("access-control")]


def test_metrics() -> None:
    with openai_served(load(MODEL), load("pellucid/capitals-llama")) as server:
        for _ in range(2):
            server.complete([5, 6, 7, 8], max_tokens=3, n=2, ignore_eos=True)
        text = server.client.get("/metrics").text
    label = f'{{model_name="{MODEL}"}}'
    for name, value in (
        ("prompt_tokens_total", 8), ("generation_tokens_total", 12), ("num_requests_running", 0), ("num_requests_waiting", 0),
        ("time_to_first_token_seconds_count", 2), ("inter_token_latency_seconds_count", 8), ("e2e_request_latency_seconds_count", 2),
        ("request_queue_time_seconds_count", 2), ("kv_cache_usage_perc", 0), ("num_preemptions_total", 0),
        ("prefix_cache_queries_total", 8), ("iteration_tokens_total_sum", 2 * 4 + 2 * 4),
    ):  # fmt: skip
        assert f"pellucid:{name}{label} {float(value)}\n" in text, name
    assert f'pellucid:request_success_total{{finished_reason="length",model_name="{MODEL}"}} 4.0\n' in text
    assert text.count("# TYPE pellucid:num_requests_running gauge") == 1
    bill = count(MODEL, dtype="float32")

    def read(name: str) -> float:
        return float(text.partition(f"\npellucid:{name}{label} ")[2].split()[0])

    assert read("estimated_flops_per_gpu_total") == 2 * int(bill["parameters.active_without_input"]) * 16
    assert read("estimated_read_bytes_per_gpu_total") == read("iteration_tokens_total_count") * int(bill["bytes.total"])


class Process:
    """`pellucid serve` as a process."""

    def __init__(self, *words: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PELLUCID_API_KEY": KEY}
        command = [sys.executable, "-m", "pellucid", "serve", *words, "--port", "0", "--json"]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.document = json.loads(self.process.stdout.readline())
        self.address = self.document["address"]

    def ask(self, path: str, **body: Any) -> Any:
        """Return the open answer to a request; an HTTPError for a status that is no success."""
        data = json.dumps(body).encode() if body else None
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        return urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=120)

    def status(self, path: str, **body: Any) -> int:
        try:
            return int(self.ask(path, **body).status)
        except urllib.error.HTTPError as wrong:
            return wrong.code

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    running = Process(str(long_folder(tmp_path / "long")))
    yield running
    running.process.kill()
    running.process.wait()


LONG: dict[str, Any] = {"prompt": "secret words", "ignore_eos": True, "temperature": 0, "stream": True}


def test_a_process_drains_and_logs_no_text(process: Process) -> None:
    """The first SIGTERM lets a stream end, and refuses what comes new; then the process ends with 0."""
    accept(process.document, "serve")
    assert process.document["models"] == ["long"] and process.status("/health") == 200
    stream = process.ask("/v1/completions", max_tokens=3000, **LONG)
    stream.readline()
    process.process.send_signal(signal.SIGTERM)
    while process.status("/health") == 200:
        pass
    assert process.status("/v1/completions", prompt="a") == process.status("/health") == 503
    lines = stream.read().decode().split("\n\n")
    assert lines[-2] == "data: [DONE]" and len(lines) > 1000
    code, err = process.end()
    assert code == 0
    entries = [json.loads(line) for line in err.splitlines() if line.startswith('{"time"')]
    (done,) = [e for e in entries if e.get("completion_tokens") == 3000]
    assert done["status"] == 200 and done["model"] == "long" and done["finish"] == ["length"]
    assert "secret" not in err and KEY not in err


def test_a_second_signal_ends_a_process_now(process: Process) -> None:
    """A client that was killed frees its pages; with another stream running, two signals end the process."""
    port = int(process.address.rpartition(":")[2])
    body = json.dumps({"max_tokens": 30000, **LONG}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        client.recv(100)
    running = 'pellucid:num_requests_running{model_name="long"} '
    ends = time.monotonic() + 60
    while f"{running}0.0" not in process.ask("/metrics").read().decode():
        assert time.monotonic() < ends
    stream = process.ask("/v1/completions", max_tokens=30000, **LONG)
    stream.readline()
    reading = threading.Thread(target=lambda: [None for _ in iter(lambda: drained(stream), b"")])
    reading.start()
    process.process.send_signal(signal.SIGTERM)
    while process.status("/health") == 200:
        pass
    process.process.send_signal(signal.SIGTERM)
    code, _ = process.end()
    reading.join()
    assert code in (0, 130)


def drained(stream: Any) -> bytes:
    """Read a line, b"" once the server has hung up."""
    try:
        return bytes(stream.readline())
    except OSError:
        return b""
