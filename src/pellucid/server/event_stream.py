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

ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # `json.dumps` would make one for each event
MOST = 1 << 16  # bytes that a slow reader leaves before no further event is made


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
        """Send the events; an error ends the stream as its last one. Events that are made at once, as a burst's are, are sent as one."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        pending = PendingEvents()
        making = asyncio.ensure_future(self.make(pending))
        try:
            while some := await pending.take():
                await send({"type": "http.response.body", "body": some, "more_body": True})
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def make(self, pending: "PendingEvents") -> None:
        """Put the source's events into `pending`, and what is behind the last one."""
        try:
            async with aclosing(self.source.events()) as events:
                async for event in events:
                    await pending.put(encoded(event))
            await pending.put(self.source.end)
        except Exception as fault:
            await pending.put(encoded(self.source.failure(fault, self.language)))
        finally:
            pending.end()


class PendingEvents:
    """Bytes of events that have been made and not sent. More than MOST of them wait for the reader."""

    def __init__(self) -> None:
        self.parts, self.size, self.ended = list[bytes](), 0, False
        self.changed, self.taken = asyncio.Event(), asyncio.Event()

    async def put(self, event: bytes) -> None:
        """Append an event's bytes; wait while too many are not taken."""
        self.parts.append(event)
        self.size += len(event)
        self.changed.set()
        while self.size > MOST:
            self.taken.clear()
            await self.taken.wait()

    async def take(self) -> bytes:
        """Return all bytes that are there, as soon as there are some; b"" after the end."""
        while not (self.ended or self.size):
            self.changed.clear()
            await self.changed.wait()
        out, self.parts, self.size = b"".join(self.parts), [], 0
        self.taken.set()
        return out

    def end(self) -> None:
        """Let `take` return b"" once all has been taken."""
        self.ended = True
        self.changed.set()


def encoded(event: dict[str, Any]) -> bytes:
    """Return the bytes of one event; one with a type is named by it."""
    text = ENCODER.encode(event)
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {text}\n\n".encode()
