"""`pellucid verify FOLDER --server URL`: our server agrees, another model's values are seen, and each fault has one line."""

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from documented import accept
from openai_served import on_a_socket
from pellucid.analysis import verify_server
from pellucid.api.model import load
from pellucid.commands import main
from pellucid.ops.native import library
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
    answered = verify_server.answered
    with swapped(verify_server, "answered", lambda *a: [{id: x + 0.2 for id, x in of.items()} for of in answered(*a)]):
        assert main(["verify", MODEL, "--server", address]) == 1
    assert "first difference: text 0, position 1" in capsys.readouterr().out


@pytest.fixture
def without_echo(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let our server's answers be those of llama-server, which scores no prompt and gives ids. Returns the prompts' lengths."""
    fetched, lengths = verify_server.fetched, list[int]()
    vocabulary = {piece.text: piece.id for piece in load(MODEL).tokenizer.pieces(range(load(MODEL).config.vocab))}

    def llama(address: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        if body is None:
            return fetched(address, path)
        lengths.append(len(body["prompt"]))  # type: ignore[arg-type]
        if len(lengths) in (1, 4):
            return {"choices": [{"logprobs": None}]}  # of a token that is a part of a character
        got = fetched(address, path, {name: value for name, value in body.items() if name != "echo"})
        tops = got["choices"][0]["logprobs"]["top_logprobs"][0]
        rows = [{"id": vocabulary[text], "token": text, "logprob": x} for text, x in tops.items() if text in vocabulary]
        return got | {"choices": [{"logprobs": {"content": [{"top_logprobs": rows}]}}]}

    monkeypatch.setattr(verify_server, "fetched", llama)
    return lengths


def test_a_server_without_echo(address: str, without_echo: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Each prefix is asked for its likeliest ids. Seen: a model of other weights, and answers that are those of a prefix before."""
    given = ("--server", address, "--prompt", "The capital of France is Paris.")
    code, document = verified(capsys, MODEL, *given, "--tolerance", "1e-3")
    assert code == 0 and len(without_echo) > 5 and without_echo[1:] == [*range(1, without_echo[0])]
    assert float(str(document["tokens"])) > 4 * len(without_echo[1:])
    assert verified(capsys, OTHER, *given, "--served", MODEL)[0] == 1
    likeliest, before = verify_server.likeliest, list[dict[int, float]]()

    def late(*of: object) -> dict[int, float]:
        before.append(likeliest(*of))  # type: ignore[arg-type]
        return before[max(0, len(before) - 2)]

    with swapped(verify_server, "likeliest", late):
        assert verified(capsys, MODEL, *given)[0] == 1


def test_a_quantised_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its kernels round what they multiply by, so it is computed in float32 beside its server; in float64 it is up to 0.1 off.

    Here and there rows have the bits that they have alone: elsewhere a last bit may round to another int8.
    """
    load(MODEL, quant="int8").save(tmp_path / "int8")
    with on_a_socket(load(tmp_path / "int8"), key=KEY, deterministic=True) as (address, _):
        for prompt in ([], ["--prompt", "The capital of France is Paris."], ["--prompt", "法国的首都是巴黎。"]):
            code, document = verified(capsys, str(tmp_path / "int8"), "--server", address, "--tolerance", "1e-5", *prompt)
            assert code == 0 and document["dtype"] == "float32"
        rows = list[float]()
        right = verify_server.logprobs
        with swapped(verify_server, "logprobs", lambda logits: (rows.append(library.most(1)), right(logits))[1]):
            verified(capsys, str(tmp_path / "int8"), "--server", address)
            verified(capsys, MODEL, "--server", address)
        assert rows == [math.inf] * 2 + [1] * 2  # of two texts each


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
        (
            {"models": LISTED, "completions": b'{"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": "a"}]}]}}]}'},
            "the ids of",
        ),
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
    there = ["--server", address]
    for words, named in ((["--served", "x"], "--served"), (["--tolerance", "1"], "--tolerance"), ([*there, "--all"], "--all")):
        assert main(["verify", MODEL, *words]) == 2
        err = capsys.readouterr().err
        assert named in err and "--server" in err and err.count("\n") == 1
    assert main(["verify", "pellucid/capitals-bert", "--server", address]) == 2
    monkeypatch.setenv("PELLUCID_API_KEY", "wrong")
    assert main(["verify", MODEL, "--server", address]) == 2 and "401" in capsys.readouterr().err
