"""The state of a server that clients can see: its models once they are loaded, whether it drains, and a line of the log for each request.

    loading -> ready -> draining      /health answers 503, 200, 503

A line has no text of a request: {"time", "method", "path", "status", "seconds", "model", "prompt_tokens", "completion_tokens", ...}.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.server.openai.inspection import Inspector
    from pellucid.server.openai.served_model import ServedModel


class Operation:
    """The state. version: Pellucid's.  running: requests that are being answered.

    loaded: the models by the names that clients call them by.  inspector: of their requests, set after that where there is one.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.loaded = Future["Mapping[str, ServedModel]"]()
        self.inspector: Future[Inspector] | None = None
        self.closing: list[Callable[[], object]] = []
        self.draining, self.running = False, 0

    @property
    def state(self) -> str:
        """Return "loading", "ready" or "draining"."""
        return "draining" if self.draining else "ready" if self.loaded.done() else "loading"

    @property
    def models(self) -> "Mapping[str, ServedModel]":
        """Return the models. A RequestError while they load or the server drains."""
        if self.draining:
            raise RequestError("serve.draining", 503)
        if not self.loaded.done():
            raise RequestError("serve.loading", 503)
        return self.loaded.result()

    def close(self) -> None:
        """End the threads of the page."""
        while self.closing:
            self.closing.pop()()


class AccessLog:
    """A wrapper of the application that counts running requests and writes a line for each that ended."""

    def __init__(self, app: ASGIApp, operation: Operation, quiet: bool = False) -> None:
        self.app, self.operation, self.quiet = app, operation, quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, facts = time.monotonic(), 0, dict[str, Any]()
        scope["pellucid.facts"] = facts

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.operation.running += 1
        try:
            await self.app(scope, receive, noted)
        finally:
            self.operation.running -= 1
            if not self.quiet:
                line = {
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "method": scope["method"][:16],
                    "path": scope["path"][:200], "status": status, "seconds": round(time.monotonic() - began, 6), **facts,
                }  # fmt: skip
                print(json.dumps(line), file=sys.stderr, flush=True)
