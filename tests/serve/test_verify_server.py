"""`pellucid verify FOLDER --server URL`: our server agrees, another model's values are seen, and each fault has one line."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from documented import accept
from openai_served import on_a_socket
from pellucid.analysis import verify_server
from pellucid.api.model import load
from pellucid.commands import main
from tiny import swapped

MODEL, OTHER = "pellucid/capitals-llama", "pellucid/capitals"
KEY = "sk-verify"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with on_a_socket(load(MODEL), load(OTHER), key=KEY) as (address, _):
        yield address


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_API_KEY", KEY)
    monkeypatch.setenv("PELLUCID_LANG", "en")


def verified(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    """Return the exit code and the document of a command."""
    code = main(["verify", *words, "--json"])
    document = json.loads(capsys.readouterr().out)
    accept(document, "verify")
    return code, document


def test_our_server_agrees(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = verified(capsys, MODEL, "--server", address, "--tolerance", "1e-3")
    assert code == 0 and document["agrees"] is True and document["tokens"] == 46 and document["first"] is None
    assert str(document["engine"]).startswith("pellucid ") and document["served"] == MODEL and float(str(document["largest"])) < 1e-3
    code, document = verified(capsys, OTHER, "--server", f"{address}/v1/", "--served", OTHER, "--prompt", "The capital of France is Paris.")
    assert code == 0 and document["served"] == OTHER
    assert main(["verify", MODEL, "--server", address]) == 0 and "pellucid 0 serves" in capsys.readouterr().out


def test_another_model_is_seen(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = verified(capsys, OTHER, "--server", address, "--prompt", "The capital of France is Paris.")
    assert code == 1 and document["agrees"] is False and document["first"] is not None
    scored = verify_server.scored
    with swapped(verify_server, "scored", lambda *a: [value + 0.2 for value in scored(*a)]):
        assert main(["verify", MODEL, "--server", address]) == 1
    assert "first difference: text 0, position 1" in capsys.readouterr().out


@contextmanager
def answering(**answers: bytes) -> Iterator[str]:
    """Yield the address of a server that answers `models` and `completions` with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            self.send_response(200 if name in answers else 404)
            self.end_headers()
            self.wfile.write(answers.get(name, b"nothing\nhere"))

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


LISTED = b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}'


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ({}, "404: nothing here"),
        ({"models": b"[1]"}, "can be read"),
        ({"models": b"<html>"}, "can be read"),
        ({"models": b'{"data": []}'}, "lists no models"),
        ({"models": LISTED, "completions": b'{"choices": [{"text": "a"}]}'}, "echo with logprobs"),
        ({"models": LISTED, "completions": b'{"choices": [{"logprobs": {"token_logprobs": [null, -1.0]}}]}'}, "echo with logprobs"),
        ({"models": LISTED}, "404"),
    ],
)
def test_faults(answers: dict[str, bytes], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(**answers) as address:
        assert main(["verify", MODEL, "--server", address]) == 2
    err = capsys.readouterr().err
    assert named in err and err.strip().count("\n") == 0


def test_wrong_use(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        (["--server", "localhost:1"], "http://"), (["--server", "http://127.0.0.1:1"], "can be read"), (["--server", "ftp://x"], "http://"),
        (["--server", address, "--served", "x"], MODEL), (["--server", address, "--tolerance", "-1"], "--tolerance"),
    )  # fmt: skip
    for words, named in lines:
        assert main(["verify", MODEL, *words]) == 2 and named in capsys.readouterr().err
    assert main(["verify", "pellucid/capitals-bert", "--server", address]) == 2
    monkeypatch.setenv("PELLUCID_API_KEY", "wrong")
    assert main(["verify", MODEL, "--server", address]) == 2 and "401" in capsys.readouterr().err
