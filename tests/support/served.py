"""A server without a port: its application under a client that sends the page's headers, and a check of its documents."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load as parsed
from starlette.testclient import TestClient
from torch import Tensor

from documented import judge_of, schema_of
from pellucid.runs.limits import LIMITS, Limits
from pellucid.server.app import Api, build
from pellucid.server.files import File
from pellucid.server.session import Session

TOKEN = "t" * 43
PORT = 8000
SCHEMA = schema_of("api")
PAGE = {
    "/": File("/index.html", b"<!doctype html><title>p</title>", "text/html; charset=utf-8"),
    "/assets/page-DEADBEEF.js": File("/assets/page-DEADBEEF.js", b"0", "text/javascript; charset=utf-8"),
}


def judge(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the document. Fails if the schema of its name refuses it."""
    judge_of("api", name)(document)
    return document


def raw(x: Tensor) -> bytes:
    """Return the bytes of a tensor's values."""
    return x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


@dataclass
class Served:
    """A client, its session and its API."""

    client: TestClient
    session: Session
    api: Api

    def get(self, place: str, name: str, /, **query: object) -> dict[str, Any]:
        """Return the document at `place`. Fails if its schema refuses it."""
        reply = self.client.get(place, params={k: str(v) for k, v in query.items()})
        assert reply.status_code == 200, reply.text
        return judge(reply.json(), name)

    def run(self, model: str, prompt: str | list[int], **how: Any) -> dict[str, Any]:
        """Run a prompt. Returns the run's document."""
        given = {"prompt": prompt} if isinstance(prompt, str) else {"ids": prompt}
        reply = self.client.post("/api/runs", json={"model": model, **given, **how})
        assert reply.status_code == 200, reply.text
        return judge(reply.json(), "run")

    def tensor(self, run: str, n: int, /, **query: object) -> tuple[Tensor, dict[str, str]]:
        """Return a tensor of a run, and its metadata."""
        return self.values(f"/api/runs/{run}/tensors/{n}", **query)

    def values(self, place: str, /, **query: object) -> tuple[Tensor, dict[str, str]]:
        """Return the one tensor of an answer, and its metadata."""
        reply = self.client.get(place, params={k: str(v) for k, v in query.items()})
        assert reply.status_code == 200, reply.text
        raw = reply.content
        length = int.from_bytes(raw[:8], "little")
        assert length % 8 == 0  # so that a browser reads the numbers in place
        metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
        (x,) = parsed(raw).values()
        return x, metadata

    def wrong(self, place: str, status: int, code: str, /, **query: object) -> dict[str, Any]:
        """Return the error of an address. Fails if its status or code is another."""
        reply = self.client.get(place, params={k: str(v) for k, v in query.items()})
        error: dict[str, Any] = judge(reply.json(), "error")["error"]
        assert (reply.status_code, error["code"]) == (status, code), reply.text
        return error


@contextmanager
def served(opened: str | None = "pellucid/capitals", limits: Limits = LIMITS, **how: Any) -> Iterator[Served]:
    """Yield the application of an opened model, with a client."""
    session: Future[Session] = Future()
    session.set_result(Session(opened, limits, **how))
    app, api = build(session, TOKEN, PORT, limits, PAGE)
    try:
        with TestClient(app, f"http://127.0.0.1:{PORT}", headers={"authorization": f"Bearer {TOKEN}"}) as client:
            yield Served(client, session.result(), api)
    finally:
        api.close()
