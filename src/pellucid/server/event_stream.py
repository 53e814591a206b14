"""A stream of server-sent events, `data: {...}` and an empty line each; a client that disconnects ends what makes them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.runs.worker import left

if TYPE_CHECKING:
    from starlette.requests import Request


class EventSource(Protocol):
    """What makes the events of a stream. end: the bytes behind the last one."""

    end: bytes

    def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events."""

    def failure(self, fault: Exception, language: str | None) -> dict[str, Any]:
        """Return the event that ends a stream which failed."""

    def close(self) -> None:
        """Cancel what has not ended."""


class EventStream(Response):
    """A stream of a source's events. A client that disconnects cancels it at once, also while nothing is sent."""

    media_type = "text/event-stream"

    def __init__(self, request: "Request", source: EventSource, language: str | None, headers: Mapping[str, str]) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self.request, self.source, self.language = request, source, language

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, gone = asyncio.ensure_future(self.send(send)), asyncio.ensure_future(left(self.request))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.source.close()
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def send(self, send: Send) -> None:
        """Send the events; an error ends the stream as its last one."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self.source.events()) as events:
                async for event in events:
                    await send(body(event))
            await send({"type": "http.response.body", "body": self.source.end, "more_body": True})
        except Exception as fault:
            await send(body(self.source.failure(fault, self.language)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def body(event: dict[str, Any]) -> dict[str, Any]:
    """Return the message that sends one event; one with a type is named by it."""
    text = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    name = f"event: {event['type']}\n" if "type" in event else ""
    return {"type": "http.response.body", "body": f"{name}data: {text}\n\n".encode(), "more_body": True}
